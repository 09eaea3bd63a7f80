"""Backend `helium`: vector kernels for cores with Helium (MVE): Cortex-M55.

Each assembly function has an equivalent definition in plain C, so that the same kernels can run on
any machine.
May import `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; nothing may import it, since
targets refer to it by name.
"""
