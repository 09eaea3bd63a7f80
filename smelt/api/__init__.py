"""The Python interface: options, the compiler pipeline, and its results.

`compile` contains the whole pipeline. `artifact` stores the result of each stage, `report` builds
the JSON report, and `plugins` loads operators from other packages.
May import everything but `cli`; `proof`, `cli` and `bench` may import it.
"""
