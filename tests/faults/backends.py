"""Faults in the backends for cores and GPUs: assembly, its definitions in C, shaders."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "backend")


def _kernels(backend: str, test: str) -> tuple[str, ...]:
    """Return pytest's argument for a test of a backend's kernels."""
    return (f"tests/backends/{backend}/test_kernels.py", "-k", test)


_HOST, _QEMU = "test_host_definitions_equal", "test_assembly_equals"
_DIVISIONS = ("tests/backends/armv8m_baseline/test_quotient.py",)
_CALLS = ("tests/backends/cmsis_nn/test_calls.py",)

FAULTS = (
    _of(
        "the last of four sums still contains a part of the third",
        "templates/backends/armv6m/dense.j2",
        "{ a, (ab - a) >> 8, c, (cd - c) >> 8 }",
        "{ a, (ab - a) >> 8, c, cd >> 8 }",
        _kernels("armv6m", _HOST),
    ),
    _of(
        "the total of a pair is too large by one if its number of groups is even",
        "codegen/backends/armv6m/depthwise_assembly.py",
        "adds(R2, (groups + 1) // 2)",
        "adds(R2, groups // 2 + 1)",
        _kernels("armv6m", _QEMU),
    ),
    _of(
        "inputs before the image are read for lines of outputs that see only padding",
        "templates/lower/depthwise_any_plane_pack.j2",
        "behind > 0 ? (uint32_t)behind : 0;",
        "(uint32_t)behind;",
        _kernels("armv6m", _HOST),
    ),
    _of(
        "a correction of dense weights multiplies an input by its offset, not by a weight",
        "codegen/backends/armv7m/dense_assembly.py",
        ".mla(total, R2, R7, total)",
        ".mla(total, R2, R6, total)",
        _kernels("armv7m", _QEMU),
    ),
    _of(
        "half a divisor is also added to negative quotients",
        "codegen/backends/armv8m_baseline/quotient.py",
        "< 0 ? dividend - half : dividend + half;",
        "< 0 ? dividend + half : dividend + half;",
        _DIVISIONS,
    ),
    _of(
        "the substitute for the reciprocal of zero is positive",
        "codegen/backends/armv8m_baseline/quotient.py",
        "const int32_t divisor = right == 0 ? {found.zero} :",
        "const int32_t divisor = right == 0 ? {-found.zero} :",
        _DIVISIONS,
    ),
    _of(
        "the second output of a pair keeps a part of the first",
        "templates/backends/dsp/plain_pairs.j2",
        "const int32_t upper = (int32_t)(sums[1] - sums[0]);",
        "const int32_t upper = (int32_t)sums[1];",
        _kernels("dsp", _HOST),
    ),
    _of(
        "a last group of pixels reads inputs that outputs have overwritten",
        "codegen/backends/dsp/convolution_parameters.py",
        "pixels = [min(start + i, groups.end - 1) for i in range(tile.pixels)]",
        "pixels = [min(start, groups.end - tile.pixels) + i for i in range(tile.pixels)]",
        _kernels("dsp", _HOST),
    ),
    _of(
        "rows that the next strips need are not kept, but read again after they are overwritten",
        "codegen/backends/dsp/depthwise_plan.py",
        "return 0 if last else max(block.pairs - block.advance, 0)",
        "return 0",
        _kernels("dsp", _QEMU),
    ),
    _of(
        "pointers to columns outside the image advance with the rows, beyond the padding",
        "templates/backends/helium/strips.j2",
        "t->pitches[{{ i }}] = inside ? pitch : 0;",
        "t->pitches[{{ i }}] = pitch;",
        _kernels("helium", _HOST),
    ),
    _of(
        "rows that the next strip needs are read again after outputs have overwritten them",
        "templates/backends/helium/strips.j2",
        "const int32_t kept = copied[1] > row ? copied[1] - row : 0;",
        "const int32_t kept = 0;",
        _kernels("helium", _HOST),
    ),
    _of(
        "windows are read in place although some are above the image",
        "templates/backends/helium/windows.j2",
        """{{ "first >= 0 && " if direct.first }}""",
        "",
        _kernels("helium", _HOST),
    ),
    _of(
        "constants of sixteen channels are in channel order, not in lane order",
        "codegen/backends/helium/scaling.py",
        "4: (0, 2, 1, 3)",
        "4: (0, 1, 2, 3)",
        _kernels("helium", _QEMU),
    ),
    _of(
        "a library's call gets the strides of rows as strides of columns",
        "codegen/backends/cmsis_nn/calls.py",
        "return braced(values[1], values[0])",
        "return braced(*values)",
        _CALLS,
    ),
    _of(
        "a library's sum takes its second operand's shift from the first",
        "codegen/backends/cmsis_nn/elementwise.py",
        "second, *map(str, scaling.b)]",
        "second, *map(str, (scaling.b[0], scaling.a[1]))]",
        _CALLS,
    ),
    _of(
        "a shader puts bytes into a word four bits apart",
        "templates/backends/vulkan/elements.j2",
        "//% set parts, bits = (4, 8) if unit == 1 else (2, 16)",
        "//% set parts, bits = (4, 4) if unit == 1 else (2, 16)",
        ("tests/backends/vulkan/test_operators.py", "-k", "every_operator_left"),
    ),
    _of(
        "a dispatch does not wait for the dispatch that writes its input",
        "codegen/backends/vulkan/dispatches.py",
        "return not apart and (self.writes or other.writes)",
        "return not apart and other.writes",
        ("tests/backends/vulkan/test_barriers.py",),
    ),
)
