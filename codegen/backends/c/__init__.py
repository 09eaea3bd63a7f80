"""Backend `c`: portable C99 kernels that serve every operator; the fallback of all others.

May import `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; nothing may import it, since
targets name it.
"""
