"""Tests of code that backends share: pools, requantization, the assembly builder."""
