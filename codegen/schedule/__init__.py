"""From a graph to ordered steps over buffers, and the planning problem that they pose.

May import `codegen.partition` and what stands below it, `codegen.arena` and `codegen.text`, by
which it renders each kernel's function once.
"""
