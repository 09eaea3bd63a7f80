"""Operators that compute: products, pools, reductions, elementwise functions, quantization.

May import `ops` and `ir`; `ops`, `frontend`, `quant`, `codegen`, `proof` and `bench` may import it.
"""
