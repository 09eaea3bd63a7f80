"""Text generation: the Jinja environment, constants as C, shared C functions.

May import `ir`; `codegen`, `boards`, `proof`, `api` and `cli` may import it.
"""
