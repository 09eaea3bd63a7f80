"""How text is made: the Jinja environment, constants as C, assembly in strings, shared C functions.

May import `smelt.ir` and `smelt.errors`.
"""
