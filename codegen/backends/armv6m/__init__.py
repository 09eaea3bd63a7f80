"""Backend `armv6m`: kernels of two products in one MULS, for Cortex-M0 and M0+.

Each function in assembly has a definition in plain C beside it, so that the same kernels run on any
machine; RISC-V cores compile that.
May import `codegen.lower`, `ops` and `ir`; nothing may import it, since targets name it.
"""
