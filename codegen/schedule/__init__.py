"""Scheduling: from a graph to ordered steps over buffers, and the memory planning problem.

It renders the functions of kernels, each once, and writes no other C.
May import `codegen.segments`, `codegen.partition`, `codegen.passes`, `codegen.arena`,
`codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; `codegen.emit`, `codegen.accelerator`,
`codegen.backends`, `api` and `proof` may import it.
"""
