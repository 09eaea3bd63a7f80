"""Tests of calls of Arm's library."""
