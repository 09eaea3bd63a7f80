"""Backend `armv7m`: kernels of two products in one MLA, for Cortex-M3.

Each function in assembly has a definition in plain C beside it, so that the same kernels run on any
machine.
May import `codegen.lower`, `codegen.text`, `ops` and `ir`; nothing may import it, since targets
name it.
"""
