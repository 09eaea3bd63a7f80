"""Code generation: passes, partition, schedule, arena, and the project's text.

Each package's docstring lists its permitted imports.
May import `targets`, `ops` and `ir`; `boards`, `api`, `proof`, `cli` and `bench` may import it.
"""
