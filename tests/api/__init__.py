"""What Python code calls, and what it passes by mistake."""
