"""A scheduled and planned network as text: C files, firmware around them, libraries for export.

May import all of `codegen`; nothing but `smelt.api` and what stands on it may import this.
"""
