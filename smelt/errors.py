"""Every error that Smelt raises on purpose.

A message says what is wrong, where, which value, and the remedy. Only the command line catches
them; `GraphError` is the one that reports a bug of Smelt's own.
"""

from __future__ import annotations

from collections.abc import Sequence


class SmeltError(Exception):
    """Base of all errors below: an expected failure with a message for the user."""

    @property
    def kind(self) -> str:
        """What the user is told that it is: the name of the nearest class of this module."""
        return next(c.__name__ for c in type(self).__mro__ if c.__module__ == __name__)


class ModelError(SmeltError):
    """The model file is missing, truncated, corrupted or contradicts its own format."""


class UnsupportedError(SmeltError):
    """A valid model asks for something that Smelt, or the chosen target, cannot do."""


class ConfigError(SmeltError):
    """An option, a board file or an input array is wrong."""


class QuantizationError(SmeltError):
    """Calibration data from which a network cannot be quantized."""


class ToolError(SmeltError):
    """An external program (compiler, simulator, flasher) is missing or failed."""


class DeviceError(SmeltError):
    """The device does not answer, or answers out of protocol."""


class VerifyError(SmeltError):
    """The device, or a pass, computes something else than the model says."""


class GraphError(SmeltError):
    """An invariant of the IR is broken: a bug in Smelt. Names the pass that broke it."""


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
