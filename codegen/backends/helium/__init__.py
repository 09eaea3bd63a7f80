"""Backend `helium`: vector kernels for cores with Helium (MVE): Cortex-M55.

Each function in assembly has a definition in plain C beside it, so that the same kernels run on any
machine. May import `codegen.lower` and what stands below it.
"""
