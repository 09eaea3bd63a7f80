"""A fuzzer: it damages files of every format that Smelt reads, and checks how Smelt refuses them.

`python -m tests.fuzz --help` says how it is run. A few steps damage a valid file, and a forked
child tries it with limits of time and memory. Failures are grouped by their place in the code,
shrunk, and written with the command that replays them.

- `case.py`: a damaged file as data, and the description of a format.
- `forked.py`: the children, and the outcome of a file.
- `campaign.py`, `shrink.py`, `report.py`: many files, shrinking, and reports.
- `raw.py`, `trees.py`, `archives.py`: damage to bytes, to JSON and TOML, to zip archives.
- `*_format.py`: one format each: its valid files, its damage, and how Smelt uses it.
- `guided.py`: the same formats with Atheris, which searches for new paths through the code.
"""
