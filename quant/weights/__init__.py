"""Weights and biases as integers, chosen so that the outputs keep close to the float ones."""
