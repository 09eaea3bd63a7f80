"""Backend `armv8m_baseline`: kernels that use the division instruction of Cortex-M23.

The core also uses the kernels of `armv6m`.
May import `codegen.lower`, `codegen.text`, `ops` and `ir`; nothing may import it, since targets
refer to it by name.
"""
