"""Channels of integer networks that are constant or never read: found, removed, and reported.

May import `codegen.passes` and `ir`; `codegen.passes` and `api` may import it.
"""
