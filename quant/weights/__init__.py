"""Choice of the integers for weights and biases, to keep outputs close to the float ones.

May import `quant`, `ops` and `ir`; `quant` may import it.
"""
