"""Benchmarks: what Smelt's code costs, beside what other engines need.

`python -m bench NAME` runs one.
May import everything but `tests`; `tests` may import it.
"""
