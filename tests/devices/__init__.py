"""Boards, real ones and simulated: images, flashing, the wire, firmware."""
