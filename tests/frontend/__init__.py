"""Files of all formats."""
