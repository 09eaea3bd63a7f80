"""Calls of Arm's library."""
