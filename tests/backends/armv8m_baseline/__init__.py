"""Divisions by an instruction."""
