"""What activations hold, and which real numbers their integers stand for.

May import `quant`, `ops` and `ir`; `quant` and `api` may import it.
"""
