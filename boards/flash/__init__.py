"""Flashing: images of an ELF, and the programs and drives that write them to a device.

May import `boards`; `proof` and `cli` may import it.
"""

from smelt.boards.flash.image import Image
from smelt.boards.flash.runners import GDB, FlashOptions, FlashStep, choose, plan, takes_port

__all__ = ["GDB", "FlashOptions", "FlashStep", "Image", "choose", "plan", "takes_port"]
