"""3-D and transposed convolutions: several output channels of a pixel at a time, tap by tap.

The sums are separate variables, or an array if floats are computed in vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from smelt.codegen.backends.c.tap_loops import TapArithmetic, TapAxis, TapLoops
from smelt.codegen.backends.c.transposed_phases import geometry, phases
from smelt.codegen.lower.c_expressions import stored
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import LANES, braced, dense_strides, lane_blocks, total
from smelt.codegen.lower.output_stage import OutputStage
from smelt.codegen.lower.quantized_products import constant_bias, served_sums
from smelt.codegen.text.helpers import uses_in, when
from smelt.ir import DType, Node, TensorType
from smelt.ops.arithmetic.fixed_point import convolution_scales
from smelt.ops.core.convolution_nd import Conv3D, ConvolutionND, ConvTranspose

_VECTOR_LANES = 32
"""Output channels that are computed together if their sums share vector registers."""

_NAMES = ("z", "y", "x")
"""C variables of output positions, innermost axis last.

Along axis x, `kx` is the position of a tap in the window and `ix` the position of its input.
"""


def _finish(node: Node[ConvolutionND]) -> OutputStage | Refusal:
    """Return the output stage for sums without zero points, or why the node is not supported."""
    op, x, weights, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    rank = len(x.shape) - 2
    if rank > len(_NAMES):
        return Refusal(f"{op.name} supports at most 3 axes besides channels, not {rank}.")
    if x.is_quantized:
        range_ = served_sums(node, -1)
        if isinstance(range_, Refusal):
            return range_
        scales = convolution_scales(x, weights, y, node.rounding)
        return OutputStage.of(node, op.activation, constant_bias(node), scales, range_)
    if x.dtype is not DType.FLOAT32:
        return Refusal(f"{op.name} supports f32 and quantized data, not {x.dtype.value}.")
    return OutputStage(stored(op.activation, y).text, None)


@dataclass(frozen=True)
class ConvolutionNDParameters(Parameters):
    """Variables of `convolution_nd.j2`.

    Attributes:
        title, notes: text of the function's comment.
        arguments: names of the parameters, if the function calls another that computes in vectors;
            else empty.
        lines: C lines of the function that computes the outputs.
    """

    title: str
    notes: tuple[str, ...]
    arguments: str
    lines: tuple[str, ...]


def _tap_by_tap(node: Node[ConvolutionND], finish: OutputStage, request: Request) -> KernelCall:
    """Return the call that reads weights `[taps, i, o]` in place, whether constant or not."""
    op = node.op
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    kernel, names = weights.shape[:-2], _NAMES[-len(op.stride) :]
    depth, outputs = weights.shape[-2], y.shape[-1] // op.groups
    depthwise = op.groups > 1 and depth == outputs == 1
    groups = 1 if depthwise else op.groups
    per_group = y.shape[-1] // groups
    arithmetic = TapArithmetic.of(node, finish)
    simd = "simd_float" in request.target.features and y.dtype is DType.FLOAT32
    vectors = simd and per_group > LANES
    blocks = lane_blocks(per_group, _VECTOR_LANES if vectors else LANES)
    sizes = zip(names, x.shape[1:-1], kernel, y.shape[1:-1], strict=True)
    taps = TapLoops(
        sums=arithmetic,
        axes=tuple(TapAxis.of(op, a, *of_axis) for a, of_axis in enumerate(sizes)),
        pixel=_row_major([f"i{n}" for n in names], x.shape[1:-1], x.shape[-1]),
        tap=_row_major([f"k{n}" for n in names], kernel, depth * y.shape[-1]),
        group=f"g * {per_group}" if groups > 1 else "0",
        inputs=f"g * {depth}" if groups > 1 else "0",
        depth=depth,
        outputs=y.shape[-1],
        depthwise=depthwise,
        vectors=vectors,
    )
    lines = [line for block in blocks for line in taps.compute(block)]
    for head in _outer_loops(x, y, names, groups):
        lines = braced(head, lines)
    operands = (Input(0, "input"), *arithmetic.operands, Output(0, "output"))
    return KernelCall(
        template="backends/c/convolution_nd.j2",
        stem=f"{'conv' if isinstance(op, Conv3D) else 'transposed_conv'}"
        f"_{'x'.join(map(str, kernel))}",
        parameters=ConvolutionNDParameters(
            title=f"{op.name}: {x} -> {y}",
            notes=(geometry(op, kernel), *finish.notes),
            arguments=", ".join(operand.name for operand in operands) if vectors else "",
            lines=tuple(lines),
        ),
        operands=operands,
        uses=uses_in(lines) | when(vectors, "SMELT_VECTORS"),
        summary=f"tap by tap, {blocks[0].lanes} output channels at a time",
    )


def _outer_loops(x: TensorType, y: TensorType, names: Sequence[str], groups: int) -> Iterator[str]:
    """Yield C lines that open the loops over groups, output pixels and images, innermost first."""
    if groups > 1:
        yield f"for (int32_t g = 0; g < {groups}; ++g) {{"
    move = f", output += {y.shape[-1]}"
    for name, size in zip(reversed(names), reversed(y.shape[1:-1]), strict=True):
        if size > 1:
            yield f"for (int32_t {name} = 0; {name} < {size}; ++{name}{move}) {{"
            move = ""
    batch = x.shape[0]
    if batch > 1:
        yield f"for (int32_t n = 0; n < {batch}; ++n, input += {x.size // batch}{move}) {{"


class Conv3DKernel(Kernel[Conv3D]):
    """3-D convolutions, tap by tap."""

    op = Conv3D

    @override
    def offer(self, node: Node[Conv3D], request: Request) -> KernelCall | Refusal:
        finish = _finish(node)
        return finish if isinstance(finish, Refusal) else _tap_by_tap(node, finish, request)


class ConvTransposeKernel(Kernel[ConvTranspose]):
    """Transposed convolutions, phase by phase or tap by tap; taps without an input are skipped."""

    op = ConvTranspose
    uses_scratch_limit = True

    @override
    def offer(self, node: Node[ConvTranspose], request: Request) -> KernelCall | Refusal:
        finish = _finish(node)
        if isinstance(finish, Refusal):
            return finish
        found = phases(node, finish, request)
        if not isinstance(found, Refusal):
            return found
        missed = found.reason if found.optional else ""
        return replace(_tap_by_tap(node, finish, request), missed=missed)


def _row_major(names: list[str], sizes: tuple[int, ...], step: int) -> str:
    """Return the C expression of a row-major index, with `step` elements for each position."""
    strides = [size * step for size in dense_strides(sizes)]
    return total(
        name if stride == 1 else f"{name} * {stride}"
        for name, size, stride in zip(names, sizes, strides, strict=True)
        if size > 1
    )


KERNELS = (Conv3DKernel(), ConvTransposeKernel())
