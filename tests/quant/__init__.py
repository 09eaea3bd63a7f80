"""Quantization after training."""
