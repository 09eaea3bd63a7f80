"""Integer arithmetic that operators share: fixed-point multipliers and gemmlowp's functions.

May import `ir`; `ops`, `frontend`, `quant`, `codegen` and `bench` may import it.
"""
