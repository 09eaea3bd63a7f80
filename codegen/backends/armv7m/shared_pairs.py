"""Convolutions by pairs of taps that share one body for layers of different sizes.

The code of `convolution_pairs` differs between layers in the number of steps, the requantization
and the number of channels. A shared function has a *chain* of steps, which each layer enters as far
before its end as it needs, by a jump to an address on the stack. After the chain, it jumps to the
layer's *tail*: the requantization with the shifts and limits of the layer. Layers of equal
requantization share a tail, and all layers share the chain. Sizes are in the layer's struct. 1x1
convolutions share the loop over pixels too.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from typing_extensions import override

from smelt.codegen.backends.armv7m.convolution_pairs_assembly import (
    PairsOfTaps,
    own_instructions,
)
from smelt.codegen.backends.armv7m.convolution_pairs_assembly import (
    block as own_block,
)
from smelt.codegen.backends.armv7m.instructions import CONDITION
from smelt.codegen.backends.armv7m.packing import PIXELS
from smelt.codegen.backends.armv7m.plain_functions import UPPER_HALF
from smelt.codegen.backends.armv7m.shared_pairs_assembly import (
    LONGEST_CHAIN,
    JointSums,
    Tail,
    joint_block,
    joint_instructions,
)
from smelt.codegen.lower.image_product import ImageProduct
from smelt.codegen.lower.kernel import (
    BodyCost,
    InnerFunction,
    Input,
    JointBody,
    KernelCall,
    LayerStruct,
    Optimize,
    Output,
    Packed,
    Parameters,
    Scratch,
    SharedBody,
)
from smelt.codegen.lower.stored_output import stored_output
from smelt.codegen.text.parameters import NoParameters
from smelt.ir import Array, DType

_KIND = "pairs"
"""The kind of the layers' structs."""

_LOOPED = {"speed": 32, "ram": 32, "size": 4}
"""Steps per iteration of a chain that is a loop."""

_OWN_BLOCK, _SHARED_BLOCK = 22, 37
"""Instructions of the C around the assembly for a block, as gcc compiles it."""

_PACK, _OWN_REST, _SHARED_REST = 29, 6, 16
"""Instructions to pack four inputs of each pixel, and the last ones."""

_REPAIR = 11
"""Instructions for a repair of a block."""

_C_BYTES = 250
"""Bytes of the C around the assembly."""


@dataclass(frozen=True)
class TailText:
    """A tail in C.

    Attributes:
        offset: its offset in the table of tails.
        output: index of the function that requantizes a sum, among those that the function calls.
        fields: words of requantization constants for one channel and for two.
        odd: whether the last pair of channels may have one channel only.
    """

    offset: int
    output: int
    fields: tuple[int, int]
    odd: bool


@dataclass(frozen=True)
class JointParameters(Parameters):
    """Variables of `backends/armv7m/joint_pairs.j2`.

    Attributes:
        condition: preprocessor condition for the assembly.
        assembly: C lines of the statement of the function for a block.
        in_words: whether weights are stored as words.
        repaired: whether layers have repairs.
        tails: the tails.
    """

    condition: str
    assembly: str
    in_words: bool
    repaired: bool
    tails: tuple[TailText, ...]


PACK = InnerFunction(
    "backends/armv7m/pack_pairs.j2", "pack_pairs", NoParameters(), frozenset({"string.h"})
)


@dataclass(frozen=True)
class SharedPairs:
    """A layer that a shared body can compute.

    Attributes:
        product: the layer.
        sums: the sums of its own body.
        constants: the constants of its own body.
        repairs: number of repairs of all outputs.
        own_call: the call of its own body.
    """

    product: ImageProduct
    sums: PairsOfTaps
    constants: Array
    repairs: int
    own_call: KernelCall

    @property
    def tail(self) -> Tail:
        """The tail of the layer."""
        return Tail(self.sums.scaling, self.sums.outputs % 2 == 1)

    def alone(self, optimize: Optimize) -> JointSums:
        """Return the sums of a shared body for this layer only."""
        chain = self.sums.steps - 1
        looped = optimize == "size" or chain > LONGEST_CHAIN
        chain = _LOOPED[optimize] if looped else chain
        return JointSums(self.sums.in_words, self.sums.repaired, chain, looped, (self.tail,))

    def call(self, joint: JointSums) -> KernelCall:
        """Return the call of a body with these sums."""
        window = self.product.window
        numbers = {
            "outputs": window.outputs,
            "entry": joint.entry(self.sums.steps),
            "tail": joint.tail(self.tail),
            "inputs": 4 * PIXELS * self.sums.steps,
            "pixels": self._pixels,
            "depth": window.depth,
        }
        layer = LayerStruct("layer", _KIND, numbers)
        if self.pointwise:
            return KernelCall(
                template="backends/armv7m/pairs_pointwise.j2",
                stem=f"conv_1x1_{'words' if joint.in_words else 'bytes'}",
                parameters=NoParameters(),
                operands=(
                    Input(0, "input"),
                    Packed("constants", self.constants),
                    layer,
                    self._patch,
                    Output(0, "output"),
                ),
                inner=(PACK, _block(joint)),
                summary=self.own_call.summary,
            )
        return replace(
            self.own_call,
            parameters=replace(self.own_call.parameters, joint=True),
            operands=(*self.own_call.operands[:-1], layer, self.own_call.operands[-1]),
            inner=(_block(joint), *self.own_call.inner[1:]),
        )

    @property
    def _patch(self) -> Scratch:
        """The packed inputs of a block, and of the last block if it overlaps the one before."""
        blocks = 1 + (self._pixels % PIXELS > 0)
        return Scratch("patch", DType.INT32, blocks * self.sums.steps * PIXELS)

    @property
    def _pixels(self) -> int:
        """Pixels of all images."""
        return self.product.frame.pixels * self.product.frame.batch

    @property
    def pointwise(self) -> bool:
        """Whether the window is one pixel, so that the loop over pixels is shared too."""
        return self.product.window.pointwise

    def instructions(self, joint: JointSums) -> int:
        """Return the instructions of a body with these sums."""
        block = _SHARED_BLOCK if self.pointwise else _OWN_BLOCK
        block += joint_instructions(joint, self.sums, self.tail)
        return self._blocks * (block + self._packed(_SHARED_REST if self.pointwise else _OWN_REST))

    @property
    def own(self) -> BodyCost:
        """The cost of the layer's own body."""
        block = _OWN_BLOCK + own_instructions(self.sums)
        instructions = self._blocks * (block + self._packed(_OWN_REST))
        around = _C_BYTES if self.pointwise else 0
        return BodyCost(instructions, own_block(self.sums).size + around)

    def _packed(self, rest: int) -> int:
        """Return the instructions to pack and repair a block; `rest` for the last inputs."""
        rows, (fours, left) = self.product.window.kernel[0], divmod(self.product.run, 4)
        return rows * (_PACK * fours + rest * (left > 0)) + _REPAIR * self.repairs

    @property
    def _blocks(self) -> int:
        """Blocks of pixels."""
        return -(-self._pixels // PIXELS)


@dataclass(frozen=True, kw_only=True)
class PairsBody(SharedBody):
    """A body that a layer can share with others whose weights have the same form.

    Attributes:
        layer: the layer.
        sums: the sums of the body for this layer only.
    """

    layer: SharedPairs
    sums: JointSums

    @property
    @override
    def key(self) -> Hashable:
        return self.family

    @override
    def joined(self, bodies: Sequence[SharedBody]) -> JointBody:
        members = cast("Sequence[PairsBody]", bodies)
        tails = {member.layer.tail.key: member.layer.tail for member in members}
        joint = JointSums(
            in_words=self.sums.in_words,
            repaired=self.sums.repaired,
            chain=max(member.sums.chain for member in members),
            looped=self.sums.looped,
            tails=tuple(tails.values()),
        )
        pointwise = any(member.layer.pointwise for member in members)
        calls = tuple(member.layer.call(joint) for member in members)
        return JointBody(calls, _bytes(joint, pointwise=pointwise))


def shared_pairs(layer: SharedPairs, optimize: Optimize) -> SharedBody | None:
    """Return the body that a layer can share, or None if no such body can compute it."""
    frame, steps = layer.product.frame, layer.sums.steps
    if frame.pixels < PIXELS or layer.tail.base is None or steps < 2:
        return None
    sums = layer.alone(optimize)
    several = JointSums(sums.in_words, sums.repaired, sums.chain, sums.looped, sums.tails * 2)
    return PairsBody(
        call=layer.call(sums),
        cost=BodyCost(layer.instructions(several), _bytes(sums, pointwise=layer.pointwise)),
        specialized=layer.own,
        family=("pairs", sums.in_words, sums.repaired, sums.looped),
        layer=layer,
        sums=sums,
    )


def _bytes(joint: JointSums, *, pointwise: bool) -> int:
    """Return the bytes of code of a body, with the loop over pixels of 1x1 convolutions."""
    return joint_block(joint).size + (_C_BYTES if pointwise else 0)


def _block(joint: JointSums) -> InnerFunction:
    """Return the function for a block of pixels."""
    scaling = joint.tails[0].scaling
    outputs = {
        tail.scaling.steps: stored_output(tail.scaling.steps, CONDITION) for tail in joint.tails
    }
    places = {steps: 1 + i for i, steps in enumerate(outputs)}
    return InnerFunction(
        template="backends/armv7m/joint_pairs.j2",
        stem=f"joint_pairs_in_{'words' if joint.in_words else 'bytes'}",
        details={
            "length": "looped" if joint.looped else "unrolled",
            "tails": "several_tails" if len(joint.tails) > 1 else "one_tail",
            "repaired": "repaired" if joint.repaired else "exact",
            **scaling.details,
        },
        parameters=JointParameters(
            condition=CONDITION,
            assembly=joint_block(joint).text,
            in_words=joint.in_words,
            repaired=joint.repaired,
            tails=tuple(
                TailText(
                    4 * i,
                    places[tail.scaling.steps],
                    (tail.scaling.rows.shape[1], 2 * tail.scaling.rows.shape[1]),
                    tail.odd,
                )
                for i, tail in enumerate(joint.tails)
            ),
        ),
        uses={"SMELT_ARRAY", "SMELT_NAKED"},
        inner=(UPPER_HALF, *outputs.values()),
        layer=_KIND,
    )
