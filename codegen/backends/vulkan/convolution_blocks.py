"""Shaders of Conv2D, DepthwiseConv2D and FullyConnected that compute blocks of outputs.

A block is a number of pixels times a number of quads (groups of four channels). If the weights
prove that every partial sum of int8 products fits into 24 bits, the products are summed as floats,
which is exact: multiply-adds of floats are the fastest instruction that every device has. Devices
that multiply four bytes at a time use another module, with the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.vulkan.blocks import Work, blocks_of, costs_of
from smelt.codegen.backends.vulkan.calls import Block, ShaderCall
from smelt.codegen.backends.vulkan.convolution_direct import direct
from smelt.codegen.backends.vulkan.convolution_parameters import (
    ShaderProduct,
    Weighted,
    variants_of,
    word_of,
)
from smelt.codegen.backends.vulkan.elementwise import by_axis, narrowed, spread
from smelt.codegen.backends.vulkan.output_stage import FinishParameters
from smelt.codegen.lower.kernel import (
    NARROW_FLOATS,
    Input,
    Kernel,
    KernelCall,
    Output,
    Packed,
    Parameters,
    Refusal,
    Request,
)
from smelt.codegen.lower.window import Window
from smelt.ir import Array, Node
from smelt.ops.core.convolution import DepthwiseConv2D

ProductGrouping = Literal["deep", "single", "depthwise"]
"""What a step loads.

`deep` loads four input channels, `single` one; `depthwise` loads four channels, each of which
belongs to its own output channel.
"""

_MOST_COLUMNS = {"deep": 5, "single": 5, "depthwise": 7}
"""Largest number of columns of a kernel row that are unrolled, so that pixels share inputs."""

_LARGEST = (1 << 32) - 1

MOST_HALVES = 25
"""Largest number of taps of a depthwise convolution whose products are summed as float16."""

_PART = 40
"""Products of other layers that are summed as float16 before the sum is added to a float32."""

_LARGEST_PART = 64.0
"""Largest sum of the magnitudes of `_PART` weights.

float16 ends at 65504, so that inputs up to about 1000 do not overflow a partial sum.
"""


class ProductShader(Kernel[Weighted]):
    """Computes blocks if the outputs of a pixel fill words, else one output per invocation.

    A dense layer is computed as the 1x1 convolution of an image of one row.
    """

    op = Weighted
    floats = NARROW_FLOATS

    @override
    def offer(self, node: Node[Weighted], request: Request) -> KernelCall | Refusal:
        product = ShaderProduct.of(node, floats=costs_of(request.target).reals)
        if isinstance(product, Refusal):
            return product
        window = product.window
        if isinstance(node.op, DepthwiseConv2D):
            plain = window.outputs == product.depth and product.depth % 4 == 0
        else:
            straddles = node.output.type.is_quantized and window.outputs % 4 != 0
            plain = window.groups == 1 and (not straddles or product.pixels == 1)
        return blocks(product, request) if plain else direct(product)


@dataclass(frozen=True)
class ProductSteps:
    """The loops over a convolution's window.

    Attributes:
        grouping: What a step loads.
        columns: Taps of a kernel row whose inputs are loaded together.
        share: Whether neighboring pixels share these inputs.
        parts: Parts of a kernel row, each of `columns` taps.
        depth: Loads per tap and pixel.
        quads: Quads of output channels.
    """

    grouping: ProductGrouping
    columns: int
    share: bool
    parts: int
    depth: int
    quads: int

    @staticmethod
    def of(product: ShaderProduct) -> ProductSteps:
        """Return the steps of a convolution."""
        window = product.window
        grouping: ProductGrouping = "single" if window.depth % 4 else "deep"
        depth = window.depth if grouping == "single" else window.depth // 4
        if isinstance(product.node.op, DepthwiseConv2D):
            grouping, depth = "depthwise", 1
        widest = _MOST_COLUMNS[grouping]
        columns = max(c for c in range(1, widest + 1) if window.kernel[1] % c == 0)
        # Each input between the first and the last tap of a pixel's row is a tap of it.
        share = 1 < columns >= window.stride[1] and window.dilation[1] == 1
        parts = window.kernel[1] // columns
        return ProductSteps(grouping, columns, share, parts, depth, -(-window.outputs // 4))

    def work(self, product: ShaderProduct) -> Work:
        """Return the work of a step, by which the block is chosen."""
        deep, window, real = self.grouping == "deep", product.window, product.kind == "real"
        quad = 4 if real else 1
        return Work(
            steps=window.kernel[0] * self.parts * self.depth,
            columns=self.columns,
            stride=window.stride[1] if self.share else self.columns,
            input_words=1 if self.grouping == "single" else quad,
            weight_words=4 * quad if deep else quad,
            weight_loads=4 if real and deep else 1,
            packed=not real,
            products=16 if deep else 4,
        )


@dataclass(frozen=True)
class ProductShaderParameters(Parameters):
    """Parameters of the shader of blocks.

    Attributes:
        kind: How products are summed; see `Accumulation`.
        grouping: What a step loads; see `ProductGrouping`.
        finish: How sums become outputs.
        output: What is written at a time; see `_output`.
    """

    kind: str
    grouping: str
    finish: FinishParameters
    output: str


def blocks(product: ShaderProduct, request: Request) -> ShaderCall:
    """Return the call that computes blocks of pixels times quads of channels."""
    node, kind = product.node, product.kind
    finish = product.finish(raised=kind == "whole")
    steps, real, dtype = ProductSteps.of(product), kind == "real", node.input(0).type.dtype
    quads = (1 if steps.grouping == "depthwise" else steps.quads, steps.quads)
    size = (product.batch * product.size[0], product.size[1])
    choice = blocks_of(node, request, size, quads, steps.work(product))
    block = choice.taken
    grid = BlockGrid.of(product, steps, block)
    output = _output(product)
    element, vector = ("float", "vec4") if real else ("int", "ivec4")
    whole = element if steps.grouping == "single" else vector
    inputs = "one_input" if steps.grouping == "single" else "four_inputs"
    return ShaderCall(
        template="backends/vulkan/convolution.comp.j2",
        stem=f"{'depthwise' if steps.grouping == 'depthwise' else 'conv'}_{dtype.value}",
        details={"sums": f"{kind}_sums", "inputs": inputs, "output": f"to_{output}"},
        parameters=ProductShaderParameters(
            kind=kind, grouping=steps.grouping, finish=finish.parameters, output=output
        ),
        operands=(
            Input(0, "input"),
            Packed("weights", _packed(product.weights, steps, block, real=real)),
            Packed("channels", _whole_blocks(finish.rows, block)),
            *_raise(product, block),
            Output(0, "output"),
        ),
        views={
            "input": narrowed(whole if real else element, dtype),
            "weights": narrowed(vector if real or steps.grouping == "deep" else element, dtype),
            "channels": vector,
            "raise": "ivec4",
            "output": narrowed(vector if output == "quads" else element, dtype),
        },
        constants=_unrolled(product.window, steps, block),
        numbers={
            **grid.numbers,
            **_weight_steps(product, steps, block),
            **_sizes(product, steps),
            **finish.constants,
        },
        invocations=grid.invocations,
        local=(block.local, 1, 1),
        summary=block.text,
        form="vulkan_blocks",
        work={"calls": 1, "products": node.macs},
        variants=_variants(product, steps),
        block=block,
        candidates=choice.possible,
    )


@dataclass(frozen=True)
class BlockGrid:
    """The grid of blocks that covers the output.

    Attributes:
        block: The size of each block.
        tiles: Blocks per row.
        rows: Rows of all images.
        shares: Blocks along the channels.
        height: Rows of an image.
    """

    block: Block
    tiles: int
    rows: int
    shares: int
    height: int

    @staticmethod
    def of(product: ShaderProduct, steps: ProductSteps, block: Block) -> BlockGrid:
        """Return the grid that covers the product's output."""
        height, width = product.size
        tiles, shares = -(-width // block.pixels), -(-steps.quads // block.quads)
        return BlockGrid(block, tiles, product.batch * height, shares, height)

    @property
    def invocations(self) -> tuple[int, int, int]:
        """Invocations in x, y and z: one for each block."""
        tiles = self.tiles * self.rows
        return (
            spread(tiles * self.shares, self.block.local)
            if self.block.across
            else (tiles, self.shares, 1)
        )

    @property
    def numbers(self) -> Mapping[str, int]:
        """Push constants from which an invocation computes the place of its block.

        `NAME_INVERSE` is floor((2^32 - 1) / NAME), with which the shader's `quotient` divides.
        """
        divisors = {"TILES": self.tiles, "BLOCKS": self.shares, "HEIGHT": self.height}
        inverses = {f"{name}_INVERSE": _signed(_LARGEST // n) for name, n in divisors.items()}
        return {"TILES": self.tiles, "ROWS": self.rows, "BLOCKS": self.shares, **inverses}


def _unrolled(window: Window, steps: ProductSteps, block: Block) -> Mapping[str, int]:
    """Return the specialization constants: those that unroll loops or remove branches."""
    return {
        "PIXELS": block.pixels,
        "QUADS": block.quads,
        "ACROSS": int(block.across),
        "COLUMNS": steps.columns,
        "PARTS": steps.parts,
        "SHARE": int(steps.share),
        "STEP": window.stride[1] if steps.share else steps.columns,
        "PADDED": int(window.padded),
    }


def _sizes(product: ShaderProduct, steps: ProductSteps) -> Mapping[str, int]:
    """Return the push constants of the window, both images, and the value outside of the input."""
    window = product.window
    return {
        "OUT_QUADS": steps.quads,
        "OUTPUTS": window.outputs,
        "DEPTH": steps.quads if steps.grouping == "depthwise" else steps.depth,
        "KERNEL_Y": window.kernel[0],
        **by_axis(STRIDE=window.stride, DILATION=window.dilation),
        "OUTSIDE": word_of(product.outside),
        **product.geometry(),
    }


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _weight_steps(product: ShaderProduct, steps: ProductSteps, block: Block) -> Mapping[str, int]:
    """Return the strides of packed weights between steps and between blocks."""
    if steps.grouping == "depthwise":
        return {"WEIGHT_STEP": steps.quads, "WEIGHT_BLOCK": 1}
    if block.across:
        whole = -(-steps.quads // block.quads) * block.quads
        return {"WEIGHT_STEP": whole, "WEIGHT_BLOCK": block.quads}
    taps = product.window.taps * steps.depth
    return {"WEIGHT_STEP": block.quads, "WEIGHT_BLOCK": taps * block.quads}


def _packed(weights: Array, steps: ProductSteps, block: Block, *, real: bool) -> Array:
    """Reorder weights `[o, kh, kw, depth]` as the shader loads them.

    The order is `[block, step, quad, ...]`, or `[step, block, quad, ...]` if `block.across`. For
    each step and quad there are `[4 inputs, 4 outputs]` floats or `[4 outputs, 4 inputs]` bytes for
    grouping `deep`, and `[4 outputs]` for `single`. For `depthwise`, the order is `[kh, kw, o]`.
    """
    if steps.grouping == "depthwise":
        packed = np.ascontiguousarray(weights[..., 0].transpose(1, 2, 0))
        return packed if real else packed.view(np.int32)
    outputs, height, width, depth = weights.shape
    shares = -(-steps.quads // block.quads)
    padded = np.zeros((shares * block.quads * 4, height, width, depth), weights.dtype)
    padded[:outputs] = weights
    inner = 4 if steps.grouping == "deep" else 1
    columns = steps.columns
    parts = (-1, block.quads, 4, height, width // columns, columns, depth // inner, inner)
    # [block, quad, output, ky, part, column, i, input] -> [ky, part, i, column, ...]
    order = (3, 4, 6, 5, 1, 7, 2) if real or inner == 1 else (3, 4, 6, 5, 1, 2, 7)
    order = (*order[:4], 0, *order[4:]) if block.across else (0, *order)
    packed = np.ascontiguousarray(padded.reshape(parts).transpose(order))
    return packed if real else packed.view(np.int32)


def _whole_blocks(quads: Array, block: Block) -> Array:
    """Return constants `[quads, ...]` of channels, padded with zeros to whole blocks."""
    missing = -len(quads) % block.quads
    return np.concatenate([quads, np.zeros((missing, *quads.shape[1:]), quads.dtype)])


def _raise(product: ShaderProduct, block: Block) -> tuple[Packed, ...]:
    """Return the operand of initial sums for kind `whole`: 128 times the sums of the weights.

    The bias assumes that 128 was added to the inputs. The variant `dot` adds nothing to them, and
    begins with these sums instead.
    """
    if product.kind != "whole":
        return ()
    padded = np.zeros(-(-product.window.outputs // 4) * 4, np.int32)
    padded[: product.window.outputs] = product.sum_increase
    return (Packed("raise", _whole_blocks(padded.reshape(-1, 4), block)),)


def _variants(product: ShaderProduct, steps: ProductSteps) -> tuple[str, ...]:
    """Return the variants of the module: `""`, and at most one for devices with a fast feature."""
    if product.kind != "real":
        return ("", "dot") if steps.grouping == "deep" else ("",)
    if steps.grouping == "single" or (
        steps.grouping == "depthwise" and product.window.taps > MOST_HALVES
    ):
        return ("",)  # First layers have too few products to be worth a second module.
    if _largest_part(product.weights) > _LARGEST_PART:
        return ("",)
    return variants_of(product.node.input(0).type.dtype)


def _largest_part(weights: Array) -> float:
    """Return the largest sum of a float16 part, over all outputs, if inputs have magnitude 1."""
    sizes = np.sort(np.abs(weights.astype(np.float32).reshape(len(weights), -1)), axis=1)[
        :, -_PART:
    ]
    return float(sizes.sum(axis=1).max(initial=0.0))


def _output(product: ShaderProduct) -> str:
    """Return what the shader writes at a time: `words` of four bytes, `quads`, or `single`."""
    if product.node.output.type.is_quantized:
        return "words"
    return "single" if product.window.outputs % 4 else "quads"


KERNELS = (ProductShader(),)
