"""Recognition of patterns that exporters write, and fusion of operators with their neighbors.

May import `codegen.passes`, `ops` and `ir`; `codegen.passes` may import it.
"""
