"""The graph, its verifier, its text form and its archives."""
