"""Rewrites of the float network that reduce the error of its quantization.

May import `ops` and `ir`; `quant` may import it.
"""
