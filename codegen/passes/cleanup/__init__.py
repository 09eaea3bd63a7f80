"""Passes that take out what need not be computed: constants, duplicates, what nobody reads."""
