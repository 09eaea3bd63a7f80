"""Tests of the Python API and its checks of arguments."""
