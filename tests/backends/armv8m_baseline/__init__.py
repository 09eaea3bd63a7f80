"""Tests of int8 division with the division instruction of Cortex-M23."""
