"""Runs of a built network on one or many devices or simulators: run, verify, profile, deploy.

May import everything but `cli`; `api`, `cli` and `bench` may import it.
"""
