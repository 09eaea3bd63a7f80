"""Tests of kernels in plain C."""
