"""Faults in kernels: their templates, and the Python code that computes template values."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "kernel")
_CASES = ("tests/backends/test_cases.py", "-k", "test_every_case and host")

FAULTS = (
    _of(
        "requantization rounds ties of negative numbers in the wrong direction",
        "templates/text/helpers.c.j2",
        "const int32_t threshold = (mask >> 1) + (high < 0 ? 1 : 0);",
        "const int32_t threshold = (mask >> 1);",
        _CASES,
    ),
    _of(
        "the doubling high product is truncated instead of rounded",
        "templates/text/helpers.c.j2",
        "int32_t high = (int32_t)((product + (INT64_C(1) << 30)) >> 31);",
        "int32_t high = (int32_t)(product >> 31);",
        _CASES,
    ),
    _of(
        "the second rounding of scaled sums forgets the sign",
        "templates/text/helpers.c.j2",
        "return (high + (high >> 31) + (1 << (shift - 1))) >> shift;",
        "return (high + (1 << (shift - 1))) >> shift;",
        _CASES,
    ),
    _of(
        "int8 softmax does not clamp a probability of one",
        "templates/backends/c/softmax_int8.j2",
        "output[{{ i }}] = (int8_t)(y > 127 ? 127 : y);",
        "output[{{ i }}] = (int8_t)y;",
        _CASES,
    ),
    _of(
        "padding before and after an image is swapped",
        "codegen/lower/window.py",
        "before = self.padding[axis][0]",
        "before = self.padding[axis][1]",
        _CASES,
    ),
    _of(
        "dilation counts as one step too many",
        "codegen/lower/window.py",
        "text = offset(text, times(tap, dilation))",
        "text = offset(text, times(tap, dilation + (dilation > 1)))",
        _CASES,
    ),
    _of(
        "an average of integers does not round",
        "codegen/backends/c/pool.py",
        "const int32_t half = {count // 2};",
        "const int32_t half = 0;",
        _CASES,
    ),
    _of(
        "the last column of a clipped pooling window is left out",
        "codegen/backends/c/pool_windows.py",
        'end = f"{end} < {self.size} ? {end} : {self.size}"',
        'end = f"{end} < {self.size} ? {end} - 1 : {self.size}"',
        _CASES,
    ),
    _of(
        "a direct convolution reads one column beyond the image",
        "templates/backends/c/convolution_direct.j2",
        "if (ix < 0 || ix >= {{ size[1] }}) {",
        "if (ix < 0 || ix > {{ size[1] }}) {",
        _CASES,
    ),
    _of(
        "bilinear resizing rounds negative ties up",
        "templates/backends/c/resize_bilinear.j2",
        "(sum > 0 ? 524288 : 524287)",
        "524288",
        _CASES,
    ),
    _of(
        "a negative index does not count from the end",
        "templates/text/helpers.c.j2",
        "return bounded(index < 0 ? index + size : index, size - 1);",
        "return bounded(index, size - 1);",
        _CASES,
    ),
    _of(
        "a constant offset is wrong for the sum just below a threshold",
        "codegen/lower/requantization.py",
        "below = goal - (inside - 1) * reduced - 1",
        "below = goal - (inside - 1) * reduced",
        ("tests/lower/test_requantization.py", "-k", "two_roundings"),
    ),
    _of(
        "float weights of the last, incomplete block are in the wrong order",
        "codegen/backends/c/convolution_float.py",
        "parts.append(chosen.transpose(0, 2, 1).ravel())",
        "parts.append(chosen.ravel())",
        ("tests/backends/c/test_float_kernels.py", "-k", "equals_onnxruntime and host"),
    ),
    _of(
        "the upper of two sums in a word lacks the borrow of the lower",
        "templates/text/helpers.c.j2",
        "return (int32_t)(uint32_t)((sums + 0x800000u) >> 24);",
        "return (int32_t)(uint32_t)(sums >> 24);",
        _CASES,
    ),
)
