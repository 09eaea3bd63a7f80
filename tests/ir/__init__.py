"""Tests of graphs: the verifier, the text format and archives."""
