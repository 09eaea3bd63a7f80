"""Tests of schedules: the steps, buffers, functions and constants of a graph."""
