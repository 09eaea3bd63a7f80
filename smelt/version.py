"""The version of Smelt."""

__version__ = "0.1.0"
