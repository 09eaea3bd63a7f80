"""Conv3D and ConvTranspose: several output channels of a pixel at a time, tap by tap.

Their sums are variables of their own, or an array where floats are computed several at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Output, Request
from smelt.codegen.kernels.c.loops import LANES, dense_strides, lane_blocks, total
from smelt.codegen.kernels.c.store import helpers_in, offset, stored
from smelt.codegen.kernels.c.vectors import VECTORS
from smelt.ir import DType, Node
from smelt.ops.convolution_nd import Conv3D, ConvolutionND, ConvTranspose
from smelt.targets import Target

_VECTOR_LANES = 32
"""Output channels whose sums share vector registers."""

_NAMES = ("z", "y", "x")
"""C variables of the output's axes, the innermost last; taps are `kx`, input positions `ix`."""


@dataclass(frozen=True)
class Axis:
    """One axis of the image, as C.

    Attributes:
        name: variable of the output position.
        outputs: size of the output.
        head: opens the loop over the taps that may lie on an input pixel.
        lines: find the input position `i{name}`, or go on to the next tap.
    """

    name: str
    outputs: int
    head: str
    lines: tuple[str, ...]

    @staticmethod
    def of(op: ConvolutionND, axis: int, name: str, size: int, kernel: int, outputs: int) -> Axis:
        """An axis of that input size, so many taps and outputs."""
        stride, dilation, before = op.stride[axis], op.dilation[axis], op.padding[axis][0]
        tap = f"k{name}" if dilation == 1 else f"k{name} * {dilation}"
        head = f"for (int32_t k{name} = 0; k{name} < {kernel}; ++k{name}) {{"
        outside = f"if (i{name} < 0 || i{name} >= {size}) {{"
        skip = (outside, "    continue;", "}")
        if isinstance(op, Conv3D):
            position = f"{name} * {stride}" if stride > 1 else name
            found = f"const int32_t i{name} = {offset(f'{position} + {tap}', -before)};"
            padded = before or (outputs - 1) * stride + (kernel - 1) * dilation >= size
            return Axis(name, outputs, head, (found, *skip) if padded else (found,))
        cut = offset(name, before)
        if stride == 1:
            return Axis(name, outputs, head, (f"const int32_t i{name} = {cut} - {tap};", *skip))
        if dilation == 1 and before >= 0:
            first = f"({cut}) % {stride}" if before else f"{name} % {stride}"
            head = f"for (int32_t k{name} = {first}; k{name} < {kernel}; k{name} += {stride}) {{"
            found = f"const int32_t i{name} = ({cut} - {tap}) / {stride};"
            return Axis(name, outputs, head, (found, *skip))
        lines = (
            f"const int32_t at_{name} = {cut} - {tap};",
            f"const int32_t i{name} = at_{name} / {stride};",
            f"if (at_{name} < 0 || at_{name} % {stride} != 0 || i{name} >= {size}) {{",
            *skip[1:],
        )
        return Axis(name, outputs, head, lines)


class _TapsKernel(Kernel):
    """The weights `[taps, i, o]` are read as they stand, whether they are constant or not."""

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        x, rank = node.input(0).type, len(node.input(0).type.shape) - 2
        if x.dtype is not DType.FLOAT32:
            return f"{node.op.name} is served for f32 data, not {x.dtype.value}."
        if rank > len(_NAMES):
            return f"{node.op.name} is served for up to 3 axes besides channels, not {rank}."
        return None

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        op = node.op
        if not isinstance(op, ConvolutionND):
            raise TypeError(f"{op.name} is no convolution")
        x, weights, y = node.input(0).type, node.input(1).type, node.output.type
        kernel, names = weights.shape[:-2], _NAMES[-len(op.stride) :]
        depth, outputs = weights.shape[-2], y.shape[-1] // op.groups
        depthwise = op.groups > 1 and depth == outputs == 1
        groups = 1 if depthwise else op.groups
        per_group = y.shape[-1] // groups
        has_bias = node.optional(2) is not None
        store = stored(op.activation, y)
        vectors = "simd_float" in request.target.features and per_group > LANES
        blocks = lane_blocks(per_group, _VECTOR_LANES if vectors else LANES)
        pixel = _row_major([f"i{n}" for n in names], x.shape[1:-1], x.shape[-1])
        tap = _row_major([f"k{n}" for n in names], kernel, depth * y.shape[-1])
        group, inputs = (f"g * {per_group}", f"g * {depth}") if groups > 1 else ("0", "0")
        operands = (
            Input(0, "input"),
            Input(1, "weights"),
            *((Input(2, "bias"),) if has_bias else ()),
            Output(0, "output"),
        )
        parameters: dict[str, object] = {
            "title": f"{op.name}: {x} -> {y}",
            "op": op,
            "kernel": kernel,
            "axes": [
                Axis.of(op, a, name, x.shape[a + 1], kernel[a], y.shape[a + 1])
                for a, name in enumerate(names)
            ],
            "batch": x.shape[0],
            "image": x.size // x.shape[0],
            "groups": groups,
            "depth": depth,
            "depthwise": depthwise,
            "outputs": y.shape[-1],
            "has_bias": has_bias,
            "blocks": [
                {
                    "head": b.head,
                    "lanes": range(b.lanes),
                    "channel": total((group, b.position, "j")),
                    "input": total(("input", pixel, b.position if depthwise else inputs)),
                    "weights": total(("weights", tap, group, b.position)),
                    "channels": [total((group, b.lane(lane))) for lane in range(b.lanes)],
                }
                for b in blocks
            ],
            "store": store,
            "vectors": vectors,
            "arguments": ", ".join(operand.name for operand in operands),
        }
        return KernelCall(
            template="c/convolution_nd.j2",
            stem=f"{'conv' if isinstance(op, Conv3D) else 'transposed_conv'}"
            f"_{'x'.join(map(str, kernel))}",
            parameters=parameters,
            operands=operands,
            helpers=helpers_in([store.text]) | (VECTORS if vectors else frozenset[str]()),
            summary=f"tap by tap, {blocks[0].lanes} output channels at a time",
        )


class Conv3DKernel(_TapsKernel):
    """3-D convolutions."""

    op = Conv3D


class ConvTransposeKernel(_TapsKernel):
    """Transposed convolutions: only taps that meet an input pixel are visited."""

    op = ConvTranspose


def _row_major(names: list[str], sizes: tuple[int, ...], step: int) -> str:
    """The C expression of an index into an array of these axes, of `step` elements each."""
    strides = [size * step for size in dense_strides(sizes)]
    return total(
        name if stride == 1 else f"{name} * {stride}"
        for name, size, stride in zip(names, sizes, strides, strict=True)
        if size > 1
    )


KERNELS = (Conv3DKernel(), ConvTransposeKernel())
