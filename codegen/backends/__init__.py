"""The backends, a folder each: which nodes they serve, with which code, scratch and constants.

Each module of a backend has a tuple `KERNELS`. A backend may import `codegen.lower` and what
stands below it, and no other backend. One that drives an accelerator may import
`codegen.accelerator` too, and what stands below that.
"""
