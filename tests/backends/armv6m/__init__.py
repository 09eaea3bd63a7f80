"""Tests of kernels for Cortex-M0 and M0+, as plain C on the host and under QEMU."""
