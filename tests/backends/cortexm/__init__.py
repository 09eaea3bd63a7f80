"""Kernels in assembly, as plain C on the host and under QEMU."""
