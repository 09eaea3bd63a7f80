"""Smelt: from trained model to bare metal."""

__version__ = "0.1.0"
