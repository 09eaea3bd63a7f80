"""Differential fuzzer: random model files, compiled in many ways, against other engines' results.

`python -m tests.differential --networks N --seed S` runs it; `campaign.py` says what a run does.
"""
