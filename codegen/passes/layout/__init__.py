"""Memory layouts: cancellation of transpositions and reshapes.

May import `codegen.passes`, `ops` and `ir`; `codegen.passes` and `codegen.backends` may
import it.
"""
