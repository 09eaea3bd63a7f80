"""Control flow, and operators that take a run-time length as an operand.

May import `ops` and `ir`; `ops`, `frontend` and `codegen` may import it.
"""
