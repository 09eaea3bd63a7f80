"""Tests of the arena's planner and validator, and of the scratch that kernels may take."""
