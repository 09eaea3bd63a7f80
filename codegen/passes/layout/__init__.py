"""The order in which memory holds the elements of a tensor: transposes and reshapes that cancel.

May import `codegen.passes`, `ops` and `ir`; `codegen.passes` and `codegen.backends` may
import it.
"""
