"""Verification and profiles."""
