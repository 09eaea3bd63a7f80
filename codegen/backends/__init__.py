"""The backends, a folder each: which nodes they serve, with which code, scratch and constants.

Each module of a backend has a tuple `KERNELS`. A backend knows no other one. Only those that drive
an accelerator know the first four of these.
May import `codegen.accelerator`, `codegen.schedule`, `codegen.partition`, `codegen.passes`,
`codegen.arena`, `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; `api` may
import it.
"""
