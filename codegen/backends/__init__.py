"""The backends, one folder each: the nodes that they serve, with code, scratch and constants.

A backend's modules list their kernels in a tuple `KERNELS`. Backends do not import each other. Only
those that drive an accelerator import the first four of the following packages.
May import `codegen.accelerator`, `codegen.schedule`, `codegen.partition`, `codegen.passes`,
`codegen.arena`, `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; `api` may
import it.
"""
