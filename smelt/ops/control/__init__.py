"""Control flow, and operators that are told a size known at run time.

May import `ops` and `ir`; `ops`, `frontend` and `codegen` may import it.
"""
