"""Faults in verification: tolerances, the comparison of memory and of outputs."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "verify")
_VERIFY = ("tests/proof/test_verify.py", "-k", "not simulated")
_MEMORY = ("tests/devices/test_memory.py", "-k", "not mps2 and not riscv")

FAULTS = (
    _of(
        "floats may differ by a thousandth of the range",
        "smelt/proof/tolerances.py",
        "FLOAT_TOLERANCE = 1e-5",
        "FLOAT_TOLERANCE = 1e-3",
        _VERIFY,
    ),
    _of(
        "NaN passes",
        "smelt/proof/tolerances.py",
        "wrong = ~(distance <= max(tolerance, FLOAT_TOLERANCE) * range_)",
        "wrong = distance > max(tolerance, FLOAT_TOLERANCE) * range_",
        _VERIFY,
    ),
    _of(
        "differences of integers wrap",
        "smelt/proof/tolerances.py",
        "return np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)",
        "return np.abs(a - b).astype(np.uint64)",
        _VERIFY,
    ),
    _of(
        "classes may differ by one",
        "smelt/proof/tolerances.py",
        "wrong = distance > max(tolerance * levels, tolerance > 0 and levels >= _CLASSES)",
        "wrong = distance > max(tolerance * levels, 1)",
        _VERIFY,
    ),
    _of(
        "state is not carried from one sample of the reference to the next",
        "smelt/proof/verify.py",
        "        states = evaluation.states\n",
        "",
        _VERIFY,
    ),
    _of(
        "expected outputs are compared with themselves",
        "smelt/proof/verify.py",
        "difference = compare(want, found, tolerances.get(value, 0.0))",
        "difference = compare(want, want, tolerances.get(value, 0.0))",
        _VERIFY,
    ),
    _of(
        "only the first sample is compared",
        "smelt/proof/verify.py",
        "in enumerate(zip(references, result.outputs, strict=True)):",
        "in [(0, (references[0], result.outputs[0]))]:",
        _VERIFY,
    ),
    _of(
        "only the first half of memory is compared",
        "boards/firmware_bytes.py",
        "for start in range(0, len(section.data), _PIECE):",
        "for start in range(0, len(section.data) // 2, _PIECE):",
        _MEMORY,
    ),
    _of(
        "the search for the differing byte is off by one",
        "boards/firmware_bytes.py",
        "start, end = (middle, end) if same else (start, middle)",
        "start, end = (middle + 1, end) if same else (start, middle)",
        _MEMORY,
    ),
    _of(
        "regions of another build are accepted",
        "boards/firmware_bytes.py",
        "own = [region for region in regions if self._has(region)]",
        "own = list(regions)",
        _MEMORY,
    ),
    _of(
        "firmware of another build passes without `--any-build`",
        "smelt/proof/memory.py",
        "if missing is not None and not any_build:",
        "if missing is not None and any_build:",
        _MEMORY,
    ),
    _of(
        "only the sizes of arrays are compared",
        "smelt/proof/memory.py",
        "if found != expected:",
        "if len(found) != len(expected):",
        _MEMORY,
    ),
    _of(
        "different memory is accepted directly after loading",
        "smelt/proof/memory.py",
        "    if altered is not None:\n",
        "    if altered is not None and not loaded:\n",
        _MEMORY,
    ),
)
