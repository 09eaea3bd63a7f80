"""Targets and models of their cycles."""
