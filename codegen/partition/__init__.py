"""The choice of a kernel for each node, its reason, and rewrites that let more kernels apply.

May import `codegen.lower`, `codegen.passes`, `targets`, `ops` and `ir`; `codegen.accelerator`,
`codegen.segments`, `codegen.schedule`, `codegen.backends`, `api` and `bench` may import it; it
finds backends by their names.
"""
