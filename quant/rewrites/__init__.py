"""Rewrites of the float network after which it loses less when it is quantized.

May import `quant.ranges`, `ops` and `ir`; `quant` may import it.
"""
