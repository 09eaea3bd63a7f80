"""Benchmarks of Smelt's code, compared with other engines.

`python -m bench NAME` runs one.
May import everything except `tests`; `tests` may import it.
"""
