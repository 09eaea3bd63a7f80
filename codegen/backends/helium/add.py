"""int8 additions and subtractions of equal shapes on Helium.

If one multiply-add for each input is proved exact (see `linear`), the kernel adds in this way.
Otherwise it takes the reference's steps: scale both inputs to a common scale, add, and scale the
sum to the output's scale. Each scaling has gemmlowp's two roundings (see `scaling`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from typing_extensions import override

from smelt.codegen.backends.helium.assembly import AssemblyLines, HeliumAssembly
from smelt.codegen.backends.helium.linear import Linear, clamp, linear
from smelt.codegen.lower.additions import addition, one_element, refuse_addition
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.text.expressions import offset
from smelt.ir import Node, Rounding
from smelt.ops.arithmetic.fixed_point import clamp_limits
from smelt.ops.core.binary import Binary
from smelt.ops.core.binary_integer import CommonScale, add_scaling, sub_scaling


@lru_cache(maxsize=128)
def _form(node: Node[Binary]) -> Linear | None:
    """Return one multiply-add of each input that is exact for all inputs, or None."""
    pairs = addition(node)
    return linear((pairs.a, pairs.b), pairs.outputs, pairs.slopes, pairs.limits)


@dataclass(frozen=True)
class ScaledTerm:
    """A number to scale (`value`, a C expression), its multiplier and its right shift."""

    value: str
    multiplier: int
    shift: int


@dataclass(frozen=True)
class SumSteps:
    """gemmlowp's steps of an addition or subtraction, for the definition in plain C.

    Attributes:
        inputs: both inputs, scaled to the common scale.
        sum: their sum or difference, scaled to the output's scale.
        plus: C text that adds the output's zero point; empty if that is 0.
    """

    inputs: tuple[ScaledTerm, ScaledTerm]
    sum: ScaledTerm
    plus: str

    @staticmethod
    def of(steps: CommonScale, node: Node[Binary]) -> SumSteps:
        """Return the steps of a node."""
        values = (
            f"({offset(f'{name}[i]', -node.input(i).type.zero_point)}) * {1 << steps.left_shift}"
            for i, name in enumerate(("a", "b"))
        )
        scales = steps.a, steps.b
        first, second = (ScaledTerm(v, m, -e) for v, (m, e) in zip(values, scales, strict=True))
        multiplier, shift = steps.output
        total = ScaledTerm("x - y" if node.op.kind == "sub" else "x + y", multiplier, -shift)
        return SumSteps((first, second), total, offset("", node.output.type.zero_point))


@dataclass(frozen=True)
class HeliumAddParameters(Parameters):
    """Variables of `backends/helium/add.j2`.

    Attributes:
        title: text of the function's comment.
        form: formula of the multiply-adds, for the comment; None if `steps` are used.
        sum: the same formula as C; None if `steps` are used.
        steps: gemmlowp's steps; None if the multiply-adds are used.
        count: number of outputs.
        low, high: smallest and largest output.
        body: the assembly.
    """

    title: str
    form: str | None
    sum: str | None
    steps: SumSteps | None
    count: int
    low: int
    high: int
    body: AssemblyLines


class AddKernel(Kernel[Binary]):
    """Adds or subtracts four elements at a time."""

    op = Binary

    @override
    def offer(self, node: Node[Binary], request: Request) -> KernelCall | Refusal:
        if refusal := refuse_addition(node):
            return refusal
        op, form, steps, y = node.op, _form(one_element(node)), _steps(node), node.output.type
        limits = clamp_limits(op.activation, y, node.rounding)
        taken = None
        if form is not None:
            asm = _assembly(form, limits, y.size)
        elif steps is not None:
            asm, taken = _long_assembly(steps, node, limits), SumSteps.of(steps, node)
        else:
            return Refusal(
                f"{op.name}: with these scales, neither one multiply-add of each input is exact,"
                " nor do gemmlowp's steps shift right only."
            )
        return KernelCall(
            template="backends/helium/add.j2",
            stem=op.kind,
            details={"scale": str(asm.body)},
            parameters=HeliumAddParameters(
                title=f"{op.name}: {node.input(0).type}, {node.input(1).type} -> {y}",
                form=None if form is None else form.text(("a", "b")),
                sum=None if form is None else form.text(("a[i]", "b[i]")),
                steps=taken,
                count=y.size,
                low=limits[0],
                high=limits[1],
                body=asm.body,
            ),
            operands=(Input(0, "a"), Input(1, "b"), Output(0, "output")),
            in_place=((0, 0), (0, 1)),
            summary="gemmlowp's steps"
            if form is None
            else "one multiply-add of each input, proved exact for all inputs",
            form="helium_add_steps" if form is None else "helium_add",
            work={"outputs": y.size, "calls": 1},
            uses=frozenset({"SMELT_NAKED"}),
        )


def _steps(node: Node[Binary]) -> CommonScale | None:
    """Return the reference's steps; None if one shifts left, or if the rounding is not TFLM's."""
    op, a, b, y = node.op, node.input(0).type, node.input(1).type, node.output.type
    if node.rounding is not Rounding.TFLM:
        return None
    steps = (sub_scaling if op.kind == "sub" else add_scaling)(a, b, y)
    shifts = [shift for _, shift in (steps.a, steps.b, steps.output)]
    return steps if max(shifts) <= 0 and min(shifts) >= -31 else None


def _long_assembly(
    steps: CommonScale, node: Node[Binary], limits: tuple[int, int]
) -> HeliumAssembly:
    """Return the body of a function that takes the reference's steps.

    Registers: r0, r1: inputs; r2: outputs; r3, r4: what to add to each scaled input for its zero
    point; r5-r7: multipliers and r8-r10: shifts of first input, second input and sum; r11: output
    zero point; r12: temporary; q0, q1: inputs, q0: sum; q2: 1 << left shift; q3: temporary.
    """
    asm = HeliumAssembly()
    types = node.input(0).type, node.input(1).type, node.output.type
    unit = 1 << steps.left_shift
    asm("push {r4-r11, lr}")
    asm.constant("r3", unit)
    asm("vdup.32 q2, r3")
    asm.constant("r3", -types[0].zero_point * unit)
    asm.constant("r4", -types[1].zero_point * unit)
    for i, (multiplier, shift) in enumerate((steps.a, steps.b, steps.output)):
        asm.constant(f"r{5 + i}", multiplier)
        asm.constant(f"r{8 + i}", shift)
    asm.constant("r11", types[2].zero_point)
    asm.constant("r12", types[2].size)
    asm("dlstp.32 lr, r12", "1:")
    asm("vldrb.s32 q0, [r0], #4", "vldrb.s32 q1, [r1], #4")
    asm("vmlas.s32 q0, q2, r3", "vmlas.s32 q1, q2, r4")
    _scale(asm, "q0", "r5", "r8", steps.a[1])
    _scale(asm, "q1", "r6", "r9", steps.b[1])
    asm(f"{'vsub' if node.op.kind == 'sub' else 'vadd'}.i32 q0, q0, q1")
    _scale(asm, "q0", "r7", "r10", steps.output[1])
    asm("vqadd.s32 q0, q0, r11", "vqmovnb.s32 q0, q0", "vqmovnb.s16 q0, q0")
    clamp(asm, limits, "q0", "r12", "q3")
    asm("vstrb.32 q0, [r2], #4", "letp lr, 1b", "pop {r4-r11, pc}")
    return asm


def _scale(asm: HeliumAssembly, vector: str, multiplier: str, shift: str, amount: int) -> None:
    """Scale a vector; `multiplier` and `shift` are registers, `amount` is the shift's value."""
    asm(f"vqrdmulh.s32 {vector}, {vector}, {multiplier}")
    if amount:
        asm(f"vshr.s32 q3, {vector}, #31", f"vadd.i32 {vector}, {vector}, q3")
        asm(f"vrshl.s32 {vector}, {shift}")


def _assembly(form: Linear, limits: tuple[int, int], count: int) -> HeliumAssembly:
    """Return the body of a function with one multiply-add of each input.

    Registers: r0, r1: inputs; r2: outputs; r3: offset; q2: first factor; r4: second factor.
    """
    asm = HeliumAssembly()
    asm("push {r4, lr}")
    asm.constant("r3", form.factors[0])
    asm("vdup.32 q2, r3")
    asm.constant("r3", form.start)
    asm.constant("r4", form.factors[1])
    asm.constant("r12", count)
    asm("dlstp.32 lr, r12", "1:")
    asm("vldrb.s32 q0, [r0], #4", "vldrb.s32 q1, [r1], #4")
    asm("vmlas.s32 q0, q2, r3", "vmla.s32 q0, q1, r4")
    first, second = form.narrowing
    asm(f"vqrshrnb.s32 q0, q0, #{first}", f"vqrshrnb.s16 q0, q0, #{second}")
    clamp(asm, limits, "q0", "r12", "q3")
    asm("vstrb.32 q0, [r2], #4", "letp lr, 1b", "pop {r4, pc}")
    return asm


KERNELS = (AddKernel(),)
