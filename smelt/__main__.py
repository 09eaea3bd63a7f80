"""The program `smelt`, and `python -m smelt`."""

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the signal's number."""


def main() -> None:
    """Run the command line; Ctrl-C ends the program without a word from here on."""
    # The module `signal` takes milliseconds to import, for names that are not needed here.
    import _signal as signals  # pyright: ignore[reportMissingModuleSource]

    before = signals.getsignal(signals.SIGINT)
    heard = before != signals.SIG_IGN  # a shell lets what it starts in the background ignore Ctrl-C
    if heard:
        signals.signal(signals.SIGINT, _end_at_once)
    gc.disable()  # imports make many objects, none of them garbage
    from contextlib import suppress

    from smelt.cli.app import main as command_line

    gc.freeze()
    gc.enable()
    try:
        try:
            if heard:
                signals.signal(signals.SIGINT, before)
            command_line()
        finally:
            with suppress(OSError, ValueError):  # nobody reads it, or it is closed
                sys.stdout.flush()
            if heard:
                signals.signal(signals.SIGINT, _end_at_once)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)


def _end_at_once(number: int, frame: "FrameType | None") -> None:
    """Nothing has begun that would have to be ended; an import may swallow an exception."""
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
