"""Every error that Smelt raises on purpose.

A message says what is wrong, where, which value, and the remedy. Only the command line catches
these errors. `GraphError` is the only one that reports a bug of Smelt.
"""

from __future__ import annotations

from collections.abc import Sequence


class SmeltError(Exception):
    """Base class: an expected failure, with a message for the user."""

    @property
    def kind(self) -> str:
        """Name of the error that users see: that of the nearest base class in this module."""
        return next(c.__name__ for c in type(self).__mro__ if c.__module__ == __name__)


class ModelError(SmeltError):
    """The model file is missing, truncated or corrupted, or contradicts its own format."""


class UnsupportedError(SmeltError):
    """A valid model needs something that Smelt or the chosen target does not support."""


class ConfigError(SmeltError):
    """An option, a board file or an input array is wrong."""


class QuantizationError(SmeltError):
    """The network cannot be quantized with this calibration data."""


class ToolError(SmeltError):
    """An external program (compiler, simulator, flasher) is missing or failed."""


class DeviceError(SmeltError):
    """The device does not answer, or breaks the protocol."""


class VerifyError(SmeltError):
    """The device or a pass computes other results than the model."""


class GraphError(SmeltError):
    """An invariant of the IR is broken, which is a bug in Smelt. Names the pass that broke it."""


class DoesNotFit(SmeltError):
    """The network needs more memory than the board has.

    Attributes:
        needed: bytes needed.
        available: bytes available.
        largest: `(name, bytes)` of the largest buffers, largest first.
    """

    def __init__(
        self,
        message: str,
        *,
        needed: int,
        available: int,
        largest: Sequence[tuple[str, int]] = (),
    ) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available
        self.largest = tuple(largest)
