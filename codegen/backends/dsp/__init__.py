"""Backend `dsp`: kernels of SMLAD and its like, for cores with the DSP extension: M4, M7, M33.

Each function in assembly has a definition in plain C beside it, so that the same kernels run on any
machine.
May import `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; nothing may import it, since
targets name it.
"""
