"""Backend `dsp`: kernels with SMLAD and similar instructions, for cores with the DSP extension.

These cores are Cortex-M4, M7 and M33. Each function in assembly also has a definition in plain C,
so that the same kernels run on any machine.
May import `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; nothing may import it, since
targets name it.
"""
