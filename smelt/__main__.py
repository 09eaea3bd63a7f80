"""The program `smelt`, and `python -m smelt`."""

import gc
import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line; Ctrl-C before there is one ends the program without a word."""
    before = signal.signal(signal.SIGINT, _end_at_once)
    gc.disable()  # imports make many objects, none of them garbage
    from smelt.cli import main as command_line

    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, before)
    command_line()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """Nothing has begun that would have to be ended; an import may swallow an exception."""
    del frame
    os._exit(128 + number)


if __name__ == "__main__":
    main()
