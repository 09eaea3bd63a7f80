"""Tests of quantization after training."""
