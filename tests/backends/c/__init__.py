"""Kernels in plain C."""
