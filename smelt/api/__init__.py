"""What Python code is offered: options, the pipeline, and what it makes.

`compile` is the pipeline on one screen, `artefact` holds every stage of it, `report` says in JSON
what was built, `plugins` loads operators from outside.
May import everything but `cli`; `proof`, `cli` and `bench` may import it.
"""
