"""Rewrites of the float network after which it loses less when it is quantized.

May import `ops` and `ir`; `quant` may import it.
"""
