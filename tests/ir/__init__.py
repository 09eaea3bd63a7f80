"""Tests of graphs: the verifier, the text form and archives."""
