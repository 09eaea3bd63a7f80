"""Tests of kernels for the DSP extension: plain C on the host, assembly under QEMU."""
