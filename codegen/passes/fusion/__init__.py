"""Passes that recognize what exporters write out, and fold operators into their neighbours."""
