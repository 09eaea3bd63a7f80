"""Backend `armv8m_baseline`: what Cortex-M23 computes by its instruction for division.

Beside them the core takes the kernels of `armv6m`. May import `codegen.lower` and what stands below
it.
"""
