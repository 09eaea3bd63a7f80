"""Presentation of results: terminal tables, HTML pages and JSON records.

May import everything; `cli` and `bench` may import it.
"""
