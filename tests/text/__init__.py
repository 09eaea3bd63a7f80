"""Tests of the layout of text and of the cache of templates."""
