"""Calls of Arm's CMSIS-NN (version 7), which the user provides.

Its functions for 8-bit data compute what TensorFlow Lite Micro does. Where one does not, for some
sizes or quantizations, the kernel refuses these. Which of several functions suits a layer is
settled here, by the rules of the library's wrappers, so that only that one is linked.
May import `codegen.lower`, `targets`, `ops` and `ir`; nothing may import it: it is found by name.
"""

HEADER = "arm_nnfunctions.h"
"""What a file that calls the library includes."""
