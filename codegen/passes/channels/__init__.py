"""Removal of constant and unread channels from integer networks, and its report.

May import `codegen.passes` and `ir`; `codegen.passes` and `api` may import it.
"""
