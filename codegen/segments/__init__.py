"""Segments: consecutive nodes that are computed together, a few rows at a time.

Between the nodes of a segment, only *bands* of tensors are stored: the rows that the next turn
still needs, and the rows that a turn adds. `bands` computes which rows each turn makes and which
rows a band keeps; `choose` decides which nodes become segments; `replay` checks the result by
following every byte through an inference.
May import `arena`, `lower`, `partition`, `ir` and `ops`; `schedule` and above may import it.
"""
