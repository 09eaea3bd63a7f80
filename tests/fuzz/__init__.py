"""A fuzzer: damaged files of every format that Smelt reads, and what becomes of them.

`python -m tests.fuzz --help` says how it is run. A file is made from a sound one by a few steps of
damage, and tried in a forked child with limits of time and memory. What is found is told apart by
its place, shrunk, and written with the command that replays it.

- `case.py`: what a file is made of, and the formats.
- `forked.py`: the children, and what became of a file.
- `campaign.py`, `shrink.py`, `report.py`: many files; few bytes; what was found.
- `raw.py`, `trees.py`, `archives.py`: damage to bytes, to JSON and TOML, to zip archives.
- `*_format.py`: one format each: its sound files, its damage, and what Smelt does with it.
- `guided.py`: the same with Atheris, which looks for new paths through the code.
"""
