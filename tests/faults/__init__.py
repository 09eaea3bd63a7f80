"""Faults that a person could make, planted one at a time; the quick tests must find each.

`python -m tests.faults` applies every fault to a copy of the tree, never to the tree itself, and
runs only the tests that are named with it. `--markdown` writes the table of docs/reliability.md.
"""

from tests.faults import (
    arena,
    backends,
    emit,
    kernels,
    partition,
    passes,
    quantizer,
    verification,
    wire,
)
from tests.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *kernels.FAULTS,
    *backends.FAULTS,
    *partition.FAULTS,
    *passes.FAULTS,
    *arena.FAULTS,
    *quantizer.FAULTS,
    *emit.FAULTS,
    *wire.FAULTS,
    *verification.FAULTS,
)
"""All planted faults."""
