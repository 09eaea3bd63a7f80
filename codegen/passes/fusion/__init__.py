"""Passes that recognize what exporters write out, and fold operators into their neighbours.

May import `codegen.passes`, `ops` and `ir`; `codegen.passes` may import it.
"""
