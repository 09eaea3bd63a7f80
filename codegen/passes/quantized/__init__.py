"""Integer arithmetic for dequantized operands, and tables for chains of 8-bit functions.

May import `codegen.passes`, `ops` and `ir`; `codegen.passes`, `codegen.partition` and `proof` may
import it.
"""
