"""Code shared by all backends: the kernel interface, products, loops and requantization as C.

It depends on no backend.
May import `codegen.text`, `targets`, `ops` and `ir`; all of `codegen`, `boards`, `api`, `proof`,
`cli` and `bench` may import it.
"""
