"""Backend `armv6m`: kernels for Cortex-M0 and M0+ that compute two products with one MULS.

Each assembly function has an equivalent definition in plain C, so that the same kernels can run on
any machine; RISC-V cores use the C.
May import `codegen.lower`, `ops` and `ir`; nothing may import it, since targets refer to it by
name.
"""
