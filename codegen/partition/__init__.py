"""Which backend's kernel computes each node, why, and how nodes are rewritten to be served better.

May import `codegen.lower`, `codegen.passes`, `targets`, `ops` and `ir`; `codegen.accelerator`,
`codegen.schedule`, `codegen.backends`, `api` and `bench` may import it; it finds backends by their
names.
"""
