"""Shader of Reduce.

An invocation computes one output element, or four; if there are few elements, a workgroup computes
each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.elementwise import (
    Lanes,
    refuse_types,
    scalar,
    spread,
    view,
)
from smelt.codegen.backends.vulkan.unary import float_bits
from smelt.codegen.lower.kernel import (
    NARROW_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.nested_loops import ArrayLoop, dense_strides, nest
from smelt.codegen.text.helpers import when
from smelt.ir import DType, Node, Rounding, TensorType
from smelt.ops.arithmetic.fixed_point import INT32_MAX
from smelt.ops.core.reduce import Reduce, reduce_multiplier, reduce_scale

GROUP = 128
"""Invocations of a workgroup that reduces a row together, if rows are long and few."""

_MAX_AXES = 5


@dataclass(frozen=True)
class ReduceFormula:
    """GLSL of a reduction.

    Attributes:
        first: Initial value of the accumulator `acc`.
        step: Statement that adds an element `x` to `acc`.
        result: The output in terms of `acc`.
        combine: Expression that combines two accumulators `a` and `b`.
        constants: Specialization constants by name.
    """

    first: str
    step: str
    result: str = "acc"
    combine: str = "a + b"
    constants: Mapping[str, int] = field(default_factory=dict[str, int])


_SUMS = {
    "mean": ("acc += x", "acc / float(INNER)"),
    "sum": ("acc += x", "acc"),
    "l1": ("acc += abs(x)", "acc"),
    "l2": ("acc += x * x", "sqrt(acc)"),
    "sum_square": ("acc += x * x", "acc"),
    "log_sum": ("acc += x", "log_float(acc)"),
}

_SERVED = frozenset({*_SUMS, "max", "min", "prod", "log_sum_exp"})
"""Kinds that have a shader; the CPU computes the others."""


def grouped(rows: int, size: int) -> bool:
    """Return whether a workgroup should reduce each row: one invocation per row leaves a GPU idle.

    That is so if rows are few and long.
    """
    return size >= 2 * GROUP and rows <= 1024


def loop_constants(prefix: str, loops: Sequence[ArrayLoop], names: Sequence[str]) -> dict[str, int]:
    """Return loops' specialization constants, named as in `locate` of `elements.j2`."""
    found: dict[str, int] = {}
    for number, loop in enumerate(loops):
        found[f"{prefix}SIZE_{number}"] = loop.size
        for name, stride in zip(names, loop.strides, strict=False):
            found[f"{prefix}{name}_{number}"] = stride
    return found


@dataclass(frozen=True)
class ReduceShaderParameters(Parameters):
    """Parameters of the shader of Reduce.

    Attributes:
        kind: The kind of Reduce.
        functions: GLSL of shared functions.
        scalar: GLSL type of an output element.
        lanes: How many elements an invocation computes.
        first: See `ReduceFormula`.
        step: See `ReduceFormula`.
        result: See `ReduceFormula`.
        combine: See `ReduceFormula`; empty if there is no workgroup.
        second: Whether there is a second pass, which sums exponentials: `log_sum_exp`.
        group: Whether a workgroup computes each output.
        load: GLSL that loads an input.
        outer: Indices of the loops over outputs.
        inner: Indices of the loops over the inputs of an output.
    """

    kind: str
    functions: str
    scalar: str
    lanes: Lanes
    first: str
    step: str
    result: str
    combine: str
    second: bool
    group: bool
    load: str
    outer: tuple[int, ...]
    inner: tuple[int, ...]


class ReduceShader(Kernel[Reduce]):
    """Reduces axes, in one pass over the inputs of each output; `log_sum_exp` needs two."""

    op = Reduce
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[Reduce], request: Request) -> KernelCall | Refusal:
        op, x, y = node.op, node.input(0).type, node.output.type
        if refusal := _refuse(op, x):
            return refusal
        outer, inner = _outer(op, x), _inner(op, x)
        if max(len(outer), len(inner)) > _MAX_AXES:
            return Refusal(
                f"{op.name} over more than {_MAX_AXES} axes is not served on the GPU, even after "
                "merging."
            )
        if refusal := refuse_types(node):
            return refusal
        second = op.kind == "log_sum_exp"
        group = y.dtype.is_float and grouped(y.size, op.count(x))
        lanes = Lanes.of(y.dtype, quads=not (group or second) and _in_quads(outer, inner))
        if lanes.quads:
            outer, inner = _in_fours(outer), _divided(inner)
        formula, load = _formula(node), lanes.load(x.dtype, "INPUT", "at")
        items, called = lanes.items(y.size), when(second, "exp_float", "log_float")
        return ShaderCall(
            template="backends/vulkan/reduce.comp.j2",
            stem=f"{op.kind}_{x.dtype.value}",
            parameters=ReduceShaderParameters(
                kind=op.kind,
                functions=lanes.functions(load, formula.result, other=called),
                scalar=scalar(y.dtype),
                lanes=lanes,
                first=formula.first,
                step=formula.step,
                result=formula.result,
                combine=formula.combine if group else "",
                second=second,
                group=group,
                load=load,
                outer=tuple(range(len(outer))),
                inner=tuple(range(len(inner))),
            ),
            operands=(Input(0, "input"), Output(0, "output")),
            views={"input": view(x.dtype, lanes.quads), "output": view(y.dtype, lanes.quads)},
            constants={
                "ITEMS": items,
                "COUNT": y.size,
                "INNER": op.count(x),
                **loop_constants("OUTER_", outer, ["INPUT"]),
                **loop_constants("INNER_", inner, ["INPUT"]),
                **formula.constants,
            },
            invocations=(items * GROUP, 1, 1) if group else spread(items),
            local=(GROUP, 1, 1) if group else None,
            summary=f"{op.kind} of {op.count(x)} elements",
            form="vulkan_reduce",
            work={"calls": 1, "inputs": x.size, "outputs": y.size},
        )


def _refuse(op: Reduce, x: TensorType) -> Refusal | None:
    """Return why no shader computes a reduction of this kind and type; None if one does."""
    if op.kind not in _SERVED:
        return Refusal(f"{op.name} is not served on the GPU: there is no shader for it.")
    low, high = (0, 1) if x.dtype is DType.BOOL or x.dtype.is_float else x.dtype.limits
    sums = op.kind == "mean" or (op.kind == "sum" and x.is_quantized)
    if sums and x.dtype.is_integer and op.count(x) * (high - low) > INT32_MAX:
        return Refusal(f"{op.name} of {op.count(x)} elements may overflow 32 bits.")
    return None


def _outer(op: Reduce, x: TensorType) -> list[ArrayLoop]:
    strides = dense_strides(x.shape)
    kept = [axis for axis in range(len(x.shape)) if axis not in op.axes]
    shape = [x.shape[axis] for axis in kept]
    own = [strides[axis] for axis in kept]
    return list(nest(shape, own, dense_strides(shape), names="x" * len(shape)))


def _inner(op: Reduce, x: TensorType) -> list[ArrayLoop]:
    strides, axes = dense_strides(x.shape), sorted(op.axes)
    sizes = [x.shape[axis] for axis in axes]
    return list(nest(sizes, [strides[axis] for axis in axes], names="x" * len(axes)))


def _in_quads(outer: Sequence[ArrayLoop], inner: Sequence[ArrayLoop]) -> bool:
    """Return whether four adjacent outputs always depend on four adjacent inputs at a time."""
    if not outer or outer[-1].strides[0] != 1 or outer[-1].size % 4:
        return False
    return not any(loop.strides[0] % 4 for loop in (*outer[:-1], *inner))


def _in_fours(outer: Sequence[ArrayLoop]) -> list[ArrayLoop]:
    last = outer[-1]
    return [*_divided(outer[:-1]), ArrayLoop(last.name, last.size // 4, (1,))]


def _divided(loops: Sequence[ArrayLoop]) -> list[ArrayLoop]:
    return [ArrayLoop(loop.name, loop.size, (loop.strides[0] // 4,)) for loop in loops]


def _formula(node: Node[Reduce]) -> ReduceFormula:
    op, y = node.op, node.output.type
    if op.kind in ("max", "min", "log_sum_exp"):
        return _extremum("min" if op.kind == "min" else "max", y.dtype)
    if y.is_quantized:
        return _quantized(node)
    zero, one = ("0.0", "1.0") if y.dtype.is_float else ("0", "1")
    if op.kind == "prod":
        return ReduceFormula(one, "acc *= x", combine="a * b")
    step, result = _SUMS[op.kind]
    if y.dtype.is_integer:
        step = "acc += x" if y.dtype.limits[0] == 0 and op.kind == "l1" else step
        result = "acc / INNER" if op.kind == "mean" else "acc"
    return ReduceFormula(zero, step, result)


def _extremum(kind: str, dtype: DType) -> ReduceFormula:
    step, combine = f"acc = {kind}(acc, x)", f"{kind}(a, b)"
    if dtype.is_float:
        bits = "0x7F800000" if kind == "min" else "0xFF800000u"
        reader = "intBitsToFloat" if kind == "min" else "uintBitsToFloat"
        return ReduceFormula(f"{reader}({bits})", step, combine=combine)
    least, greatest = (0, 1) if dtype is DType.BOOL else dtype.limits
    if kind == "min":
        return ReduceFormula(f"{greatest}{'u' if dtype is DType.UINT32 else ''}", step)
    return ReduceFormula(f"{least + 1} - 1" if least < 0 else "0", step)


def _quantized(node: Node[Reduce]) -> ReduceFormula:
    op, x, y = node.op, node.input(0).type, node.output.type
    count = op.count(x)
    low, high = y.dtype.limits
    constants = {
        "CENTER": -x.zero_point * count,
        "ZERO": y.zero_point,
        "LOW": low,
        "HIGH": high,
    }
    if node.rounding is Rounding.ONNX:
        constants["SCALE"] = float_bits(reduce_scale(op.kind, x, y, count))
        real = "float(acc + CENTER) * intBitsToFloat(SCALE)"
        scaled = f"int(roundEven(clamp({real}, -16777216.0, 16777216.0)))"
    else:
        multiplier, shift = reduce_multiplier(op.kind, x, y, count)
        constants |= {"MULTIPLIER": multiplier, "SHIFT": shift}
        scaled = "requantize(acc + CENTER, MULTIPLIER, SHIFT)"
    return ReduceFormula("0", "acc += x", f"clamp({scaled} + ZERO, LOW, HIGH)", constants=constants)


KERNELS = (ReduceShader(),)
