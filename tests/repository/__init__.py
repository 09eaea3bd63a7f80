"""The repository itself: documents, packages, structure, security."""
