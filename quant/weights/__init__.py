"""Weights and biases as integers, chosen so that the outputs keep close to the float ones.

May import `quant`, `ops` and `ir`; `quant` may import it.
"""
