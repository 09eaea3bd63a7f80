"""Tests of kernels for cores with the DSP extension, as plain C on the host and under QEMU."""
