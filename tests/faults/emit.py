"""Faults in the writing of C files."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "emit")

FAULTS = (
    _of(
        "a loop ends while its condition still holds",
        "codegen/emit/statements.py",
        'stop = "" if continues is None else f"if (!{continues}) {{"',
        'stop = "" if continues is None else f"if ({continues}) {{"',
        ("tests/schedule/test_control_code.py",),
    ),
    _of(
        "constants of the assembler file have wrong offsets",
        "codegen/emit/weights.py",
        "        start += size\n",
        "        start = size\n",
        ("tests/emit/test_binary_weights.py",),
    ),
)
