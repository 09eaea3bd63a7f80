"""Recurrent layers, and operators on sequences.

May import `ops` and `ir`; `ops`, `frontend`, `quant` and `codegen` may import it.
"""
