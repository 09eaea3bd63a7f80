"""Segments: consecutive nodes that are computed together, a few rows at a time.

A segment is computed in *turns*: in each turn, each node makes the next few rows of its result.
Between the nodes of a segment, only *bands* of tensors are stored: the rows that the next turn
still needs, and the rows that a turn adds. `bands` computes which rows each turn makes and which
rows a band keeps; `chains` finds layers that overwrite the rows that they read; `turns` tells
what each turn computes and moves; `choose` decides which nodes become segments (`parts`), by their
cycles (`kernel_costs`) and `live_bytes`.

May import `codegen.partition`, `codegen.passes` and `ir`; `codegen.schedule` and `api` may import
it.
"""
