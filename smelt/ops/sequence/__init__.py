"""Recurrent layers, and operators on sequences.

May import `ops` and `ir`; `frontend`, `quant` and `codegen` may import it.
"""
