"""Quantization after training: a float Graph and data in, a quantized Graph out."""
