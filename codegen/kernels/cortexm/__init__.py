"""Kernels for Cortex-M cores: assembly where compilers will not do, C around it.

Each function in assembly has a plain-C definition too, so that the same kernels run on any machine.
"""
