"""Recurrent layers, and operators on sequences."""
