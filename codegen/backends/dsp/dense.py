"""int8 dense layers of one row, on cores with the DSP extension.

One function in assembly computes four outputs at a time. A halfword of packed weights contains the
weights of two of them (see `tile`). The inputs are widened to 16 bits into scratch once, or, which
needs no scratch but more instructions, again for every four outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.dsp.assembly import (
    add,
    next_words,
    paired_products,
    repeated,
    span,
)
from smelt.codegen.backends.dsp.convolution import DspProducts, products
from smelt.codegen.backends.dsp.plain_pairs import PLAIN_OUTPUTS, PLAIN_PAIRS
from smelt.codegen.backends.dsp.scaling import ScalingStruct
from smelt.codegen.backends.dsp.tile import (
    PATCH_BYTES,
    UNPAIRED,
    DspTile,
    pairs_exact,
    with_addend,
)
from smelt.codegen.backends.dsp.tile_assembly import (
    shifted,
    widening,
)
from smelt.codegen.lower.kernel import (
    InnerFunction,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
    Scratch,
)
from smelt.codegen.lower.window import Window
from smelt.codegen.text.helpers import when
from smelt.ir import Array, DType, Node
from smelt.ops.core.convolution import Conv2D
from smelt.ops.core.fully_connected import FullyConnected

_STRAIGHT = {"speed": 36, "size": 8, "ram": 36}
"""Sums of up to this many words of inputs are written out without a loop."""

_END, _ADDEND, _ALL_END = 8, 12, 16
"""Offsets of variables on the stack, behind the addresses of the next outputs and of the patch."""

_SAVED = 36
"""Bytes of the registers that the function saves; the fifth C argument follows them."""

_LOOPED = {"speed": 8, "size": 1, "ram": 8}
"""Steps of four words in one iteration of a loop."""


@dataclass(frozen=True)
class FourOutputs:
    """The assembly that computes the outputs of a dense layer, four at a time.

    Registers:
        r0: sum0; r1: sum0 + 256 * sum1; r2: sum2; r3: sum2 + 256 * sum3
        r4-r7: inputs; r8, r9, r12, lr: weights
        r10, r11: addresses of the next weights and inputs
    Stack: addresses of the next outputs and of the first inputs, end of the weights without the
    last four outputs if they overlap, addend, end of all weights

    Attributes:
        tile: sizes and scaling; a word of packed weights is for two inputs and two channels.
        direct: whether inputs are widened in registers, not into scratch before.
    """

    tile: DspTile
    direct: bool = False

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "dense_direct" if self.direct else "dense"

    @property
    def first(self) -> int:
        """Words of inputs in the first step, 1 to 4; all other steps have four."""
        return (self.tile.words - 1) % 4 + 1

    @property
    def unrolled(self) -> int:
        """Steps of four words in an iteration of the loop."""
        return _LOOPED[self.tile.optimize]

    @property
    def iterations(self) -> int:
        """Iterations of the loop; 0 if all steps are written out."""
        if self.tile.words <= _STRAIGHT[self.tile.optimize]:
            return 0
        iterations = (self.tile.words - self.first) // 4 // self.unrolled
        return iterations if iterations > 1 else 0

    @property
    def repeats(self) -> int:
        """Steps of four words between the first one and the loop."""
        return (self.tile.words - self.first) // 4 - self.iterations * self.unrolled

    @property
    def overlap(self) -> int:
        """Number of outputs that the last four have in common with the four before."""
        return -self.tile.outputs % 4

    @property
    def group_words(self) -> int:
        """Words of weights and constants of four outputs."""
        return 2 * self.tile.words + 4 * self.tile.row

    @property
    def frame(self) -> int:
        """Bytes of variables on the stack, a multiple of 8 with those of the saved registers."""
        return 20 if self.tile.scaling.signed or self.overlap else 12

    @property
    def sums(self) -> list[str]:
        """Instructions at the start of the function, then those that sum four outputs' products."""
        size = 4 * self.group_words
        lines = ["push {r4-r11, lr}", f"sub sp, sp, #{self.frame}", "mov r11, r0", "mov r10, r1"]
        lines += ["str r2, [sp]", "str r11, [sp, #4]"]
        if self.tile.scaling.signed:
            lines += ["ldr r0, [r10], #4", f"str r0, [sp, #{_ADDEND}]"]
        if self.overlap:
            lines += [f"str r3, [sp, #{_ALL_END}]", *add("r3", -size)]
        lines.append(f"str r3, [sp, #{_END}]")
        four = self._chunk(4, first=False)
        lines += ["1:", *self._chunk(self.first, first=True), *repeated(self.repeats, four)]
        if self.iterations:
            lines += ["2:", *repeated(self.unrolled, four)]
            lines += [f"ldr r4, [sp, #{self.frame + _SAVED}]", "cmp r11, r4", "bne 2b"]
        return lines

    @property
    def finish(self) -> list[str]:
        """Instructions that requantize the sums and store the outputs."""
        scaling = self.tile.scaling
        shifts = [shifted(scaling.left), shifted(scaling.left - 8)]
        lines = ["sub r1, r1, r0", "sub r3, r3, r2"]
        if scaling.signed:
            lines.append(f"ldr r12, [sp, #{_ADDEND}]")
            for i in range(4):
                lines += ["ldm r10!, {r4-r6}", f"add r{i}, r4, r{i}{shifts[i % 2]}"]
                lines += scaling.product(f"r{i}", "r5", "r6", "r6", "r12")
        else:
            lines.append("ldm r10!, {r4-r9, r12, lr}")
            constants = ("r4", "r5"), ("r6", "r7"), ("r8", "r9"), ("r12", "lr")
            for i, (bias, multiplier) in enumerate(constants):
                lines.append(f"add r{i}, {bias}, r{i}{shifts[i % 2]}")
                lines += scaling.product(f"r{i}", multiplier)
        lines.append("ldr r4, [sp]")
        for i in range(4):
            lines += [*scaling.saturated(f"r{i}"), f"strb r{i}, [r4], #1"]
        lines += ["str r4, [sp]", "ldr r11, [sp, #4]", f"ldr r5, [sp, #{_END}]", "cmp r10, r5"]
        return [*lines, "bne 1b"]

    @property
    def overlapping(self) -> list[str]:
        """Instructions that go back once, for the last four outputs if they overlap others."""
        if not self.overlap:
            return []
        lines = [f"ldr r5, [sp, #{_ALL_END}]", "cmp r10, r5", "beq 3f", f"str r5, [sp, #{_END}]"]
        return [*lines, f"sub r4, r4, #{self.overlap}", "str r4, [sp]", "b 1b", "3:"]

    def _chunk(self, count: int, *, first: bool) -> list[str]:
        """Return the instructions that multiply `count` words of inputs by two words of weights.

        Args:
            count: number of words of widened inputs, 1 to 4; even if inputs are not in scratch.
            first: whether the products are the first of the sums.
        """
        lines = _widened(count) if self.direct else [next_words(span(4, count), "r11")]
        for i in range(count):
            if i % 2 == 0:
                some = "{r8, r9, r12, lr}" if i + 1 < count else "{r8, r9}"
                lines.append(f"ldm r10!, {some}")
            for pair, weights in enumerate((("r8", "r9"), ("r12", "lr"))[i % 2]):
                both, lower = [f"r{2 * pair + 1}"], [f"r{2 * pair}"]
                starts = first and i == 0
                lines += paired_products(weights, [f"r{4 + i}"], both, lower, first=starts)
        return lines

    def packed(self, weights: Array) -> Array:
        """Return the weights `[o, 1, k]` and the scaling as int32, in the assembly's order."""
        starts = np.arange(0, self.tile.outputs - 3, 4)
        if self.overlap:
            starts = np.append(starts, self.tile.outputs - 4)
        chosen = (starts[:, None] + np.arange(4)).ravel()
        pairs = self.tile.pairs(weights[chosen]).reshape(len(starts), 2, -1)
        rows = self.tile.scaling.rows[chosen].reshape(len(starts), -1)
        stream = pairs.swapaxes(1, 2).reshape(len(starts), -1)
        whole = np.concatenate([stream, rows], axis=1)
        return whole.astype(np.uint64).astype(np.uint32).view(np.int32).ravel()


def _widened(count: int) -> list[str]:
    """Return the instructions that load inputs and widen them to `count` words, an even number."""
    lines = ["ldr r7, [r11, #4]"] if count == 4 else []
    lines.append(f"ldr r5, [r11], #{2 * count}")
    for register in (5, 7)[: count // 2]:
        lines.append(f"sxtb16 r{register - 1}, r{register}")
        lines.append(f"sxtb16 r{register}, r{register}, ror #8")
    return lines


@dataclass(frozen=True)
class DenseOutputsParameters(Parameters):
    """Variables of `backends/dsp/dense_outputs.j2`: the function that computes all outputs.

    The function gets the sizes of weights and patch as pointers to their ends, so that layers of
    different sizes share it.

    Attributes:
        direct: Whether the function reads int8 inputs; otherwise, it reads widened ones.
        words: Words of widened inputs; 0 if the function has a loop over them.
        sums: Instructions up to the sums of four outputs.
        finish: Instructions from the sums to the stored outputs.
        overlapping: Instructions that begin the last four outputs if they overlap the four before.
        leave: Instructions that return.
        overlap: Outputs that the last four have in common with those before.
        four_constants: Words of constants of four outputs.
        scaling: The struct from which plain C requantizes.
    """

    direct: bool
    words: int
    sums: tuple[str, ...]
    finish: tuple[str, ...]
    overlapping: tuple[str, ...]
    leave: tuple[str, ...]
    overlap: int
    four_constants: int
    scaling: ScalingStruct


@dataclass(frozen=True)
class DspDenseParameters(Parameters):
    """Variables of `backends/dsp/dense.j2`.

    Attributes:
        title: The layer, for the comment.
        note: How results are rounded, for the comment.
        direct: Whether inputs are not widened into scratch.
        iterations: The last argument of the function that widens inputs.
        packed: Words of packed weights.
        count: Inputs if `direct`, otherwise words of the patch.
    """

    title: str
    note: str
    direct: bool
    iterations: int
    packed: int
    count: int


def _outputs(fours: FourOutputs) -> InnerFunction:
    """Return the function that computes all outputs of a layer."""
    scaling = fours.tile.scaling
    return InnerFunction(
        template="backends/dsp/dense_outputs.j2",
        stem=fours.name
        + ("" if fours.iterations else f"_{fours.tile.words}")
        + ("_signed" if scaling.signed else ""),
        details=scaling.details,
        parameters=DenseOutputsParameters(
            direct=fours.direct,
            words=0 if fours.iterations else fours.tile.words,
            sums=tuple(fours.sums),
            finish=tuple(fours.finish),
            overlapping=tuple(fours.overlapping),
            leave=(f"add sp, sp, #{fours.frame}", "pop {r4-r11, pc}"),
            overlap=fours.overlap,
            four_constants=4 * fours.tile.row,
            scaling=replace(scaling.struct, addend="weights[0]" if scaling.signed else "0"),
        ),
        uses={"SMELT_DSP"} | when(fours.direct, "SMELT_ARRAY"),
        inner=(PLAIN_PAIRS,) if fours.direct else (PLAIN_PAIRS, PLAIN_OUTPUTS),
    )


def _covers(window: Window, node: Node) -> bool:
    """Return whether one window covers the whole input, so that the node is a dense layer."""
    single = node.output.type.size == window.outputs
    return single and not window.padded and window.kernel == window.size


class DspDense(Kernel[FullyConnected | Conv2D]):
    """Dense layers of one row, and convolutions whose window covers the whole input."""

    op = FullyConnected | Conv2D

    def __init__(self, *, direct: bool) -> None:
        """Set up; `direct` if inputs are not widened into scratch."""
        self._direct = direct

    @override
    def offer(self, node: Node[FullyConnected | Conv2D], request: Request) -> KernelCall | Refusal:
        name = node.op.name
        if isinstance(node.op, Conv2D) and node.op.groups > 1:
            return Refusal(f"{name} in assembly supports only one group.")
        found = products(node)
        if isinstance(found, Refusal):
            return found
        w = found.window
        covered = w.size == (1, 1) if isinstance(node.op, FullyConnected) else _covers(w, node)
        if not covered:
            return Refusal(f"{name} in groups of four outputs supports only one row of outputs.")
        if w.outputs < 4:
            return Refusal(
                f"{name} in groups of four outputs needs at least four, not {w.outputs}."
            )
        if not pairs_exact(found.weights):
            return Refusal(f"{name} {UNPAIRED}")
        length = found.weights[0].size
        if self._direct and length % 4 != 0:
            return Refusal(f"{name} without scratch needs a multiple of four inputs, not {length}.")
        if not self._direct and length > PATCH_BYTES // 2 - 8:
            return Refusal(f"{name} has too many inputs to widen into {PATCH_BYTES} bytes.")
        tile = DspTile(1, w.outputs, 1, length, found.scaling, request.optimize)
        return _call(node, found, FourOutputs(tile, self._direct))


def _call(
    node: Node[FullyConnected | Conv2D], found: DspProducts, fours: FourOutputs
) -> KernelCall:
    tile, scaling, direct = fours.tile, found.scaling, fours.direct
    packed = fours.packed(found.weights.reshape(tile.outputs, 1, -1))
    packed = with_addend(packed, scaling)
    outputs = tile.outputs + fours.overlap
    return KernelCall(
        template="backends/dsp/dense.j2",
        stem="fully_connected",
        details=scaling.details,
        parameters=DspDenseParameters(
            title=f"{node.op.name}: {node.input(0).type} -> {node.output.type}",
            note=scaling.note,
            direct=direct,
            iterations=tile.widen_iterations,
            packed=packed.size,
            count=tile.run if direct else tile.words,
        ),
        operands=(
            Input(0, "input"),
            Packed("weights", packed),
            *(() if direct else (Scratch("patch", DType.INT32, tile.words),)),
            Output(0, "output"),
        ),
        inner=(*(() if direct else (widening(tile),)), _outputs(fours)),
        summary=f"4 outputs at a time{', without scratch' if direct else ''}",
        form=f"dsp_{fours.name}" + ("_signed" if scaling.signed else ""),
        work={
            "products": tile.words * 2 * outputs,
            "outputs": outputs,
            **({} if direct else {"inputs": tile.words * 2}),
            "calls": 1,
        },
    )


KERNELS = (DspDense(direct=False), DspDense(direct=True))
