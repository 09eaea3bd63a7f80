"""The arena's plan, its validator, and what kernels may take of it."""
