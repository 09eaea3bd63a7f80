"""Tests of segments: layers that are computed together, a few rows at a time."""
