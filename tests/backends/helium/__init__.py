"""Tests of kernels for cores with Helium, as plain C on the host and under QEMU."""
