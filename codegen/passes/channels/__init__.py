"""Channels of integer networks that are constant or never read: found, removed, and reported."""
