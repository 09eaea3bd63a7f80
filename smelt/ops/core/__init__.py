"""Operators that compute: products, pools, reductions, elementwise functions, quantization."""
