"""Which backend's kernel computes each node, why, and how nodes are rewritten to be served better.

May import the backends, `codegen.lower` and the passes.
"""
