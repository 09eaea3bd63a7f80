"""Benchmarks: what Smelt's code costs, beside what other engines need."""
