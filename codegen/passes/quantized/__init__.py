"""Integer arithmetic out of dequantized operands, and chains of 8-bit functions as one table.

May import `codegen.passes`, `ops` and `ir`; `codegen.passes`, `codegen.partition` and `proof` may
import it.
"""
