"""Passes that take out what need not be computed: constants, duplicates, what nobody reads.

May import `codegen.passes`, `ops` and `ir`; `codegen.passes` and `codegen.backends` may
import it.
"""
