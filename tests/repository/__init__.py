"""The repository itself: documents, packages, promises."""
