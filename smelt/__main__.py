"""Entry point of the program `smelt` and of `python -m smelt`."""

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells: 128 plus the signal's number."""


def main() -> None:
    """Run the command line; Ctrl-C ends the program silently from here on."""
    # The module `signal` takes milliseconds to import, for names that are not needed here.
    import _signal as signals  # pyright: ignore[reportMissingModuleSource]

    before = signals.getsignal(signals.SIGINT)
    heard = before != signals.SIG_IGN  # a shell ignores Ctrl-C for processes in the background
    if heard:
        signals.signal(signals.SIGINT, _end_at_once)
    gc.disable()  # imports create many objects that the collector would scan in vain
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
            with suppress(OSError, ValueError):  # the reader has gone, or stdout is closed
                sys.stdout.flush()
            if heard:
                signals.signal(signals.SIGINT, _end_at_once)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)


def _end_at_once(number: int, frame: "FrameType | None") -> None:
    """End the process at once: nothing needs cleanup yet, and imports may swallow exceptions."""
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
