"""Kernels of all backends, against the operators' references."""
