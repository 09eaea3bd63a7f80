"""Faults in the choice of kernels and of their scratch."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "partition")

FAULTS = (
    _of(
        "where memory is short, the fastest kernel is taken",
        "codegen/partition/candidates.py",
        "return 0.0, candidate.excess, *order",
        "return 0.0, *order, candidate.excess",
        ("tests/partition/test_partitioner.py",),
    ),
    _of(
        "--optimize ram takes a plan with gaps that is larger than the smallest arena",
        "codegen/schedule/fitting.py",
        "if found.bytes <= most:",
        "if found.bytes <= 2 * most:",
        ("tests/schedule/test_fitting.py",),
    ),
    _of(
        "a rewrite is kept if it needs a backend of lower preference",
        "codegen/partition/partitioner.py",
        "return self.group < other.group",
        "return self.group > other.group",
        ("tests/partition/test_legalize.py",),
    ),
    _of(
        "the end of a value's lifetime is off by one node",
        "codegen/partition/scratch.py",
        "total -= sum(value.type.bytes for value in ending.pop(i, ()))",
        "total -= sum(value.type.bytes for value in ending.pop(i + 1, ()))",
        ("tests/partition/test_scratch.py",),
    ),
)
