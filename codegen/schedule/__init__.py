"""From a graph to ordered steps over buffers, and the planning problem that they pose.

May import `codegen.partition` and what stands below it, and `codegen.arena`; writes no C.
"""
