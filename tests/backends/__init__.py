"""Tests of all backends' kernels against the operators' references."""
