"""How text is made."""
