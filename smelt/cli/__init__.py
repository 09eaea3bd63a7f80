"""The command line: one module per command, the shared options, and the printed output.

May import everything; `bench` may import it.
"""
