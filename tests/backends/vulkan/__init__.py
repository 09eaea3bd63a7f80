"""Tests of networks on a GPU."""
