"""The generated project."""
