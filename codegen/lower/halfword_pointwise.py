"""1x1 convolutions with two products per multiplication, by a body that layers share.

Layers differ in their sizes, in the groups into which their taps are cut (`tap_groups`), and in the
shifts of their requantization. The shared body has a *chain* for each size of group: the code of
several such groups in sequence. For each output channel, a jump enters a chain so that as many of
its groups are executed as the layer has groups of that size. The jump after a chain enters the next
chain that the layer needs. The distances of the jumps are in the layer's struct. A jump takes two
instructions, and chains that a layer does not need cost nothing.

With `--optimize size`, all groups of a layer but the last one have the same size, and their chain
is a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from smelt.codegen.lower.halfword_group import sum_group
from smelt.codegen.lower.image_product import ImageProduct
from smelt.codegen.lower.kernel import (
    BodyCost,
    Input,
    KernelCall,
    LayerStruct,
    Output,
    Packed,
    Parameters,
    Scratch,
    SharedBody,
)
from smelt.codegen.lower.requantization_32bit import ScalingSteps, ShortScaling
from smelt.codegen.lower.tap_groups import BlockSums, Taps
from smelt.ir import Array, DType

PIXELS = 4
"""Pixels of a block."""

_CHAINS = {6: 3, 5: 5, 4: 12, 3: 14, 2: 3, 1: 1}
"""Groups in the chain of each size, for speed."""

_LOOPED_TAPS = 8
"""Approximate taps per iteration of the looped chain, for size."""

_COUNT_BITS = 5
"""Bits of a count of groups in the struct's field `groups`."""


@dataclass(frozen=True)
class _CompiledC:
    """The C around the assembly, as gcc compiles it.

    Attributes:
        bytes: Bytes of code.
        block: Instructions for a block, without those for its inputs.
        inputs: Instructions to pack one channel of a block, without and with the tap's place.
    """

    bytes: int
    block: int
    inputs: tuple[int, int]


_OWN_C, _SHARED_C = _CompiledC(190, 70, (22, 24)), _CompiledC(200, 68, (21, 23))
"""Measured in a layer's own body, and in a shared one; instructions include some saturations."""


FIELDS = {
    "pixels": "of all images",
    "depth": "channels of the input",
    "groups": f"of inputs in each chain, {_COUNT_BITS} bits each",
    "outputs": "channels of the output",
    "start": "-2^15 times the number of groups",
    "step": "bytes from the first weight of a channel to its last",
    "drop": "bits that a total loses between multiplications",
    "shift": "right shift of totals at the end",
    "end": "bytes of a channel's weights in the first chain",
    **{f"jump{i}": f"bytes of jump {i} of the assembly" for i in range(6)},
}
"""Fields of the struct and their meanings; a body has some of them."""


@dataclass(frozen=True)
class Chain:
    """Groups of equal size in sequence.

    Attributes:
        size: Taps of a group.
        length: Groups in the code.
        looped: Whether the code is a loop.
    """

    size: int
    length: int
    looped: bool


@dataclass(frozen=True)
class PointwiseSums:
    """The sums that a body computes: of blocks of four pixels, without slices.

    Attributes:
        chains: The chains in the order of the code, the largest groups first.
        scaling: The requantization; its shifts are read from the struct.
    """

    chains: tuple[Chain, ...]
    scaling: ShortScaling

    @property
    def first_field(self) -> int:
        """The index of `outputs` in the struct."""
        return 2 if self.chains[0].looped else 3


@dataclass(frozen=True)
class BlockCost:
    """Instructions and bytes of the function that computes a block of pixels.

    Attributes:
        block: Instructions for each block.
        channel: Instructions for each output channel of a block.
        bytes: Bytes of code.
    """

    block: int
    channel: int
    bytes: int


@dataclass(frozen=True)
class PointwiseBlock:
    """The assembly of the function that computes a block of pixels.

    Attributes:
        text: The lines of its C statement.
        numbers: The fields of the struct that it reads after `outputs`.
        cost: The cost for the layer with these fields.
        specialized: The cost of the function for this layer alone.
    """

    text: str
    numbers: Mapping[str, int]
    cost: BlockCost
    specialized: BlockCost


PointwiseAssembly = Callable[[PointwiseSums, tuple[int, ...], BlockSums], PointwiseBlock]
"""Returns the assembly; takes the layer's groups in each chain, and the sums of its own body."""


@dataclass(frozen=True)
class ChainText:
    """A chain in C.

    Attributes:
        size: Taps of a group.
        step: Bytes of weights per group.
        count: C of the number of groups.
    """

    size: int
    step: int
    count: str


@dataclass(frozen=True)
class HalfwordPointwiseParameters(Parameters):
    """Variables of `lower/halfword_pointwise.j2`.

    Attributes:
        condition: The preprocessor condition for the assembly.
        assembly: C lines of its statement.
        chains: The chains in C.
        scaling: The requantization of sums.
        fields: Words of a channel's row of constants.
        ordered: Whether inputs are packed in their original order.
    """

    condition: str
    assembly: str
    chains: tuple[ChainText, ...]
    scaling: ScalingSteps
    fields: int
    ordered: bool


@dataclass(frozen=True)
class PointwiseTaps:
    """The taps of a layer in chains.

    Attributes:
        chains: The chains of the body.
        groups: The layer's groups in each chain.
        order: The taps in the order of the groups.
    """

    chains: tuple[Chain, ...]
    groups: tuple[int, ...]
    order: tuple[int, ...]

    @staticmethod
    def of(taps: Taps, *, small: bool) -> PointwiseTaps | None:
        """Return the taps of a layer, for size if `small`; None if they do not fit the chains."""
        counts = dict.fromkeys(range(6, 0, -1), 0)
        for group_loop in taps.group_loops:
            counts[group_loop.groups[0]] += len(group_loop.groups) * group_loop.iterations
        if small:
            size = max(size for size, count in counts.items() if count)
            looped = Chain(size, max(_LOOPED_TAPS // size, 1), looped=True)
            chains = (looped, *(Chain(rest, 1, looped=False) for rest in range(size - 1, 0, -1)))
            order = tuple(range(taps.length))
        else:
            if any(group_loop.iterations > 1 for group_loop in taps.group_loops):
                return None
            chains = tuple(Chain(size, n, looped=False) for size, n in _CHAINS.items())
            order = taps.order
        groups = tuple(counts[chain.size] for chain in chains)
        fit = all(c.looped or n <= c.length for n, c in zip(groups, chains, strict=True))
        return PointwiseTaps(chains, groups, order) if fit else None

    @property
    def ordered(self) -> bool:
        """Whether taps are summed in their original order."""
        return self.order == tuple(range(len(self.order)))

    @property
    def looped(self) -> bool:
        """Whether a chain is a loop, so that the depth says how many groups there are."""
        return self.chains[0].looped

    @property
    def fields(self) -> dict[str, int]:
        """The field that packs the number of groups of each chain.

        Empty if the depth determines them.
        """
        if self.looped:
            return {}
        return {"groups": sum(n << _COUNT_BITS * i for i, n in enumerate(self.groups))}

    def texts(self, weight_stride: int) -> tuple[ChainText, ...]:
        """Return the chains in C."""
        return tuple(
            ChainText(chain.size, chain.size * weight_stride, self._count(i))
            for i, chain in enumerate(self.chains)
        )

    def _count(self, i: int) -> str:
        size = self.chains[0].size
        if not self.looped:
            groups = f"layer->groups >> {_COUNT_BITS * i}" if i else "layer->groups"
            return f"{groups} & {(1 << _COUNT_BITS) - 1}"
        return f"layer->depth % {size} == {self.chains[i].size}" if i else f"layer->depth / {size}"


@dataclass(frozen=True)
class PointwiseLayer:
    """A layer that a shared body may compute.

    Attributes:
        product: The layer.
        own: The sums of its own body.
        condition: The preprocessor condition for the assembly.
        assembly: Returns the assembly.
        interleaved: Packs weights in the order in which the body reads them.
        weight_stride: Bytes from one weight of a channel to the next.
    """

    product: ImageProduct
    own: BlockSums
    condition: str
    assembly: PointwiseAssembly
    interleaved: Callable[[Array, int], Array]
    weight_stride: int

    def shared(self, *, small: bool) -> SharedBody | None:
        """Return the shared body, or None if no such body can compute the layer."""
        scaling, window = self.own.scaling, self.product.window
        taps = PointwiseTaps.of(self.own.taps, small=small)
        pixels = self.product.frame.pixels * self.product.frame.batch
        if taps is None or scaling.nudges is not None or scaling.biases is not None:
            return None
        block = self.assembly(PointwiseSums(taps.chains, scaling), taps.groups, self.own)
        weights = self.product.node.input(1).array.reshape(window.outputs, -1)[:, taps.order]
        places = np.argsort(np.asarray(taps.order)) * 2
        kind = f"{self.product.stem}_looped" if taps.looped else self.product.stem
        numbers = {"pixels": pixels, "depth": window.depth, **taps.fields}
        numbers |= {"outputs": window.outputs, **block.numbers}
        call = KernelCall(
            template="lower/halfword_pointwise.j2",
            stem=kind,
            details={"parts": f"parts{scaling.count}"},
            parameters=HalfwordPointwiseParameters(
                condition=self.condition,
                assembly=block.text,
                chains=taps.texts(self.weight_stride),
                scaling=replace(scaling.steps, drop=0, shift=0),
                fields=scaling.rows.shape[1],
                ordered=taps.ordered,
            ),
            operands=(
                Input(0, "input"),
                Packed("weights", self.interleaved(weights, self.weight_stride)),
                Packed("channels", scaling.rows),
                *(() if taps.ordered else (Packed("places", places.astype(np.int16)),)),
                LayerStruct("layer", kind, numbers, FIELDS),
                Scratch("patch", DType.INT32, 2 * window.depth),
                Output(0, "output"),
            ),
            uses={"SMELT_ARRAY", "SMELT_NAKED"},
            inner=(sum_group(self.condition, 2, self.weight_stride),),
            summary=f"{PIXELS} pixels at a time, two products in one multiplication",
        )
        return SharedBody(
            call,
            self._cost(block.cost, pixels, _SHARED_C, ordered=taps.ordered),
            self._cost(block.specialized, pixels, _OWN_C, ordered=self.own.taps.ordered),
        )

    def _cost(self, block: BlockCost, pixels: int, c: _CompiledC, *, ordered: bool) -> BodyCost:
        """Return the cost of the function around `block`."""
        inputs = self.product.window.depth * c.inputs[not ordered]
        outputs = self.product.window.outputs * block.channel
        instructions = -(-pixels // PIXELS) * (block.block + outputs + inputs + c.block)
        return BodyCost(instructions, block.bytes + c.bytes)
