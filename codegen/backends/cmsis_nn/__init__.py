"""Calls of Arm's CMSIS-NN (version 7), which the user provides.

Its functions for 8-bit data give the same results as TensorFlow Lite Micro. If one does not for
some sizes or quantizations, the kernel refuses these. The library's wrappers choose between several
functions at run time. Smelt chooses by the same rules at compile time, so that only one is linked.
May import `codegen.lower`, `targets`, `ops` and `ir`; nothing may import it: it is found by name.
"""

HEADER = "arm_nnfunctions.h"
"""The header that declares the library's functions."""
