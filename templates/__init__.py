"""The Jinja templates of everything that Smelt writes; a package so that they can be found.

May import nothing; nothing may import it: `codegen.text` reads its files.
"""
