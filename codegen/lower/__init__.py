"""What all backends share: the question to a kernel, and how products and loops become C.

It knows no backend.
May import `codegen.text`, `targets`, `ops` and `ir`; all of `codegen`, `boards`, `api`, `proof`,
`cli` and `bench` may import it.
"""
