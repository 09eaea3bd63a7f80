"""Integer arithmetic that operators share: fixed-point multipliers, gemmlowp's functions."""
