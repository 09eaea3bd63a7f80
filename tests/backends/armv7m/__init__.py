"""Tests of kernels for Cortex-M3, as plain C on the host and under QEMU."""
