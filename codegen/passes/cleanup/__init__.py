"""Passes that remove computation: constants, duplicates and unused results.

May import `codegen.passes`, `ops` and `ir`; `codegen.passes` and `codegen.backends` may
import it.
"""
