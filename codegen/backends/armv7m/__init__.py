"""Backend `armv7m`: kernels for Cortex-M3 that compute two products with one multiplication.

Each assembly function has an equivalent definition in plain C, so that the same kernels can run on
any machine.
May import `codegen.lower`, `codegen.text`, `ops` and `ir`; nothing may import it, since targets
refer to it by name.
"""
