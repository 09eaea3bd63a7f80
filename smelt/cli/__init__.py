"""The command line: a file for each command, the options they share, and what they print.

May import everything; `bench` may import it.
"""
