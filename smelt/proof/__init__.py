"""A built network on a device or simulator: run, verified, profiled, on one or on many.

May import everything but `cli`; `api`, `cli` and `bench` may import it.
"""
