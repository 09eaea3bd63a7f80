"""Whole networks through generated C."""
