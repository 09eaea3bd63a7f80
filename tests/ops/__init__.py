"""The operators' references, compared with independent engines."""
