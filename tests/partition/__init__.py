"""Tests of which backend computes each node, and of how nodes are rewritten for backends."""
