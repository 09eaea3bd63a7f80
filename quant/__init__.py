"""Quantization after training: a float Graph and data in, a quantized Graph out.

May import `ops` and `ir`; `api`, `cli` and `bench` may import it.
"""
