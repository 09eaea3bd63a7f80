"""Operators that move, select or resample the elements of tensors."""
