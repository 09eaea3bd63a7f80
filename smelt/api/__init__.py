"""What Python code is offered: options, the pipeline, and what it makes.

`compile` is the pipeline on one screen, `artefact` holds every stage of it, `report` says in JSON
what was built. It may import everything but commands and what is built upon it.
"""
