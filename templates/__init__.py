"""The Jinja templates of everything that Smelt writes; a package so that they can be found."""
