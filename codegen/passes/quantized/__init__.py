"""Integer arithmetic out of dequantized operands, and chains of 8-bit functions as one table."""
