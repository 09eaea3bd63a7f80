"""Code generation: passes, partition, schedule, arena, and the project's text.

Each package says what of the others it may import.
May import `targets`, `ops` and `ir`; `boards`, `api`, `proof`, `cli` and `bench` may import it.
"""
