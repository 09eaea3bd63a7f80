"""Statistics of activations, and the ranges of real numbers that their integers represent.

May import `quant`, `ops` and `ir`; `quant` and `api` may import it.
"""
