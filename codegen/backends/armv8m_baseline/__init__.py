"""Backend `armv8m_baseline`: what Cortex-M23 computes by its instruction for division.

Beside them the core takes the kernels of `armv6m`.
May import `codegen.lower`, `codegen.text`, `ops` and `ir`; nothing may import it, since targets
name it.
"""
