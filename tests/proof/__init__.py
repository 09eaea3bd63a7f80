"""Tests of verification and profiles."""
