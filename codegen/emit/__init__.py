"""A scheduled and planned network as text: C files, firmware around them, libraries for export.

May import all of `codegen` but the backends; `smelt.api` and what stands on it may import this.
"""
