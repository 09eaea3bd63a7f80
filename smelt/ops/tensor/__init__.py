"""Operators that move, select or resample the elements of tensors.

May import `ops` and `ir`; `ops`, `frontend`, `quant`, `codegen` and `bench` may import it.
"""
