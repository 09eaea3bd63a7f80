"""Pad, Transpose and Concat: operators that move elements."""

from __future__ import annotations

from math import prod

from typing_extensions import override

from smelt.codegen.backends.cmsis_nn.calls import LARGEST, Record, call, calls, dims
from smelt.codegen.lower.kernel import Input, Kernel, KernelCall, Output, Refusal, Request
from smelt.ir import DType, Node
from smelt.ops.tensor.concat import Concat
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.transpose import Transpose

_AXES = 4
_WIDEST_GATHER = 65535 // 7
"""Most columns of a matrix that the MVE variant transposes: it indexes eight rows in 16 bits."""


def _refuse_type(dtype: DType, what: str) -> Refusal | None:
    return None if dtype is DType.INT8 else Refusal(f"{what} takes i8 data, not {dtype.value}.")


class CmsisPadKernel(Kernel[Pad]):
    """Padding with one value that is known at compile time."""

    op = Pad

    @override
    def offer(self, node: Node[Pad], request: Request) -> KernelCall | Refusal:
        op, x, y, what = node.op, node.input(0).type, node.output.type, "arm_pad_s8"
        if op.mode != "constant" or node.optional(1) is not None:
            return Refusal(f"{what} pads only with a constant.")
        if len(op.padding) > _AXES:
            return Refusal(f"{what} takes at most {_AXES} axes, not {len(op.padding)}.")
        if refusal := _refuse_type(x.dtype, what):
            return refusal
        absent = _AXES - len(x.shape)
        padding = ((0, 0),) * absent + op.padding
        return call(
            what,
            f"Padding of {x}",
            arguments=("input", "output", str(op.stored_value(y)), "&size", "&before", "&after"),
            operands=(Input(0, "input"), Output(0, "output")),
            records=(
                dims("size", *(1,) * absent, *x.shape),
                dims("before", *(before for before, _ in padding)),
                dims("after", *(after for _, after in padding)),
            ),
            form="pad",
            stem="pad",
            work={"outputs": y.size, "rows": x.size // max(x.shape[-1], 1) if x.shape else 1},
        )


class CmsisTransposeKernel(Kernel[Transpose]):
    """Transpositions; axes that stay adjacent are merged into one."""

    op = Transpose

    @override
    def offer(self, node: Node[Transpose], request: Request) -> KernelCall | Refusal:
        op, x, what = node.op, node.input(0).type, "arm_transpose_s8"
        sizes, order = _joined(x.shape, op.permutation)
        if len(sizes) > _AXES:
            return Refusal(f"{what} takes at most {_AXES} axes, not {len(sizes)}.")
        if refusal := _refuse_type(x.dtype, what):
            return refusal
        widest = _WIDEST_GATHER if "mve" in request.target.features else LARGEST
        if len(sizes) == 2 and (sizes[0] > LARGEST or sizes[1] > widest):
            sizes, order = (1, *sizes), (0, *(axis + 1 for axis in order))
        moved = tuple(sizes[axis] for axis in order)
        absent = (1,) * (_AXES - len(sizes))
        return call(
            what,
            f"Axes of {x} in the order {', '.join(map(str, op.permutation))}",
            arguments=("input", "output", "&input_dims", "&output_dims", "&parameters"),
            operands=(Input(0, "input"), Output(0, "output")),
            records=(
                dims("input_dims", *sizes, *absent),
                dims("output_dims", *moved, *absent),
                Record("uint32_t", "order[]", tuple((str(axis), "") for axis in order)),
                Record(
                    "cmsis_nn_transpose_params",
                    "parameters",
                    ((str(len(order)), ""), ("order", "")),
                ),
            ),
            form="transpose_matrix" if len(order) == 2 else "transpose",
            stem="transpose",
            work={"outputs": x.size},
        )


class CmsisConcatKernel(Kernel[Concat]):
    """Concatenations: one copy for each row of each tensor."""

    op = Concat

    @override
    def offer(self, node: Node[Concat], request: Request) -> KernelCall | Refusal:
        op, y, what = node.op, node.output.type, "arm_concatenation_s8_x"
        rows, row = prod(y.shape[: op.axis]), prod(y.shape[op.axis :])
        if max(rows, row) > LARGEST:
            return Refusal(
                f"{what} counts rows, and the bytes of a row, in 16 bits, too few for {y}."
            )
        if refusal := _refuse_type(node.input(0).type.dtype, what):
            return refusal
        inputs = [v for v in node.inputs if v is not None]
        sizes = [prod(v.type.shape[op.axis :]) for v in inputs]
        copies = [
            (what, (f"input{i}", *map(str, (size, rows, 1, 1)), "output", *end))
            for i, size in enumerate(sizes)
            for end in [(str(row), str(sum(sizes[:i])))]
        ]
        return calls(
            copies,
            f"Concatenation of {len(inputs)} tensors",
            operands=(*(Input(i, f"input{i}") for i in range(len(inputs))), Output(0, "output")),
            form="concat",
            stem="concat",
            work={"outputs": y.size, "rows": rows * len(inputs)},
        )


def _joined(
    shape: tuple[int, ...], permutation: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes and order without axes of size 1, and with axes that stay adjacent merged."""
    axes = [axis for axis in permutation if shape[axis] != 1]
    kept = sorted(axes)
    order = [kept.index(axis) for axis in axes]
    groups: list[list[int]] = []
    for axis in order:
        if groups and groups[-1][-1] + 1 == axis:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if not groups:
        return (1,), (0,)
    sizes = {group[0]: prod(shape[kept[axis]] for axis in group) for group in groups}
    firsts = sorted(sizes)
    return tuple(sizes[first] for first in firsts), tuple(firsts.index(g[0]) for g in groups)


KERNELS = (CmsisPadKernel(), CmsisTransposeKernel(), CmsisConcatKernel())
