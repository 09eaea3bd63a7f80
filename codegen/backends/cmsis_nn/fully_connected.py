"""FullyConnected; with computed weights, the library's matrix product computes it."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from smelt.codegen.backends.cmsis_nn import buffers
from smelt.codegen.backends.cmsis_nn.buffers import Variant, variant_of
from smelt.codegen.backends.cmsis_nn.calls import (
    LibraryScaling,
    Record,
    call,
    clamp,
    context,
    dims,
    refuse_data,
    refuse_sums,
    scratch,
)
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Operand,
    Output,
    Packed,
    Refusal,
    Request,
)
from smelt.codegen.lower.quantized_products import bias_with_zero_point, constant_bias, sums
from smelt.ir import DType, Node
from smelt.ops.core.fully_connected import FullyConnected, fully_connected_scales


class CmsisFullyConnectedKernel(Kernel[FullyConnected]):
    """Dense layers with constant weights, or with computed weights and no bias."""

    op = FullyConnected

    @override
    def offer(self, node: Node[FullyConnected], request: Request) -> KernelCall | Refusal:
        weights, bias = node.input(1), node.optional(2)
        what = "arm_fully_connected_s8" if weights.is_constant else "arm_batch_matmul_s8"
        if bias is not None and not weights.is_constant:
            return Refusal(f"{what} adds no bias.")
        if bias is not None and not bias.is_constant:
            return Refusal(f"{what} is called only with a constant bias.")
        if refusal := refuse_data(node, what, inputs=1 if weights.is_constant else 2):
            return refusal
        x, type_, y, quant = node.input(0).type, weights.type, node.output.type, weights.type.quant
        if type_.dtype is not DType.INT8 or quant is None or len(set(quant.zero_point)) != 1:
            return Refusal(f"{what} takes i8 weights with one zero point, not {type_}.")
        scales = fully_connected_scales(x, type_, y, node.rounding)
        scaling = LibraryScaling.of(scales, type_.shape[0])
        if refusal := refuse_sums(what, scaling, sums(node, 0)):
            return refusal
        build = _dense if weights.is_constant else _product
        return build(node, scaling, quant.zero_point[0], variant_of(request.target))


def _dense(
    node: Node[FullyConnected], scaling: LibraryScaling, zero_point: int, variant: Variant
) -> KernelCall:
    weights = node.input(1)
    outputs, depth = weights.type.shape
    rows = node.input(0).type.size // depth
    shared = len(set(zip(scaling.multipliers, scaling.shifts, strict=True))) == 1
    # The MVE variant multiplies stored elements. The other terms of each sum (bias and zero points)
    # are computed at compile time and passed in the context.
    summed = variant == "mve"
    bias = bias_with_zero_point(node, 0) if summed else constant_bias(node)
    bias = np.zeros(outputs, np.int32) if bias is None else bias.astype(np.int32)
    operands: tuple[Operand, ...] = (
        Input(0, "input"),
        Packed("weights", weights.array),
        Packed("sums" if summed else "bias", bias),
        *(() if shared else scaling.operands()),
        Output(0, "output"),
    )
    records = (
        context("(void *)sums" if summed else "", bias.nbytes if summed else 0),
        _parameters(node, zero_point),
        _shared(scaling) if shared else LibraryScaling.record,
        dims("input_dims", rows, 1, 1, depth),
        dims("filter_dims", depth, 1, 1, outputs),
        dims("bias_dims", 1, 1, 1, outputs),
        dims("output_dims", rows, 1, 1, outputs),
    )
    data = ("&input_dims", "input", "&filter_dims", "weights", "&bias_dims")
    last = ("NULL" if summed else "bias", "&output_dims", "output")
    return call(
        f"arm_fully_connected_{'' if shared else 'per_channel_'}s8",
        f"Fully connected, {depth} inputs to {outputs} outputs",
        arguments=("&context", "&parameters", "&scaling", *data, *last),
        operands=operands,
        records=records,
        form="dense" if shared else "dense_channels",
        stem="fully_connected",
        work={"products": rows * outputs * depth, "outputs": rows * outputs},
    )


def _product(
    node: Node[FullyConnected], scaling: LibraryScaling, zero_point: int, variant: Variant
) -> KernelCall:
    outputs, depth = node.input(1).type.shape
    rows = node.input(0).type.size // depth
    size = buffers.matmul(variant, outputs)
    dense = _parameters(node, zero_point)
    both = dense.values, "added to inputs, weights, outputs; smallest and largest output"
    orders = ("false", "first matrix: not transposed"), ("false", "second matrix: not transposed")
    records = (
        context("scratch" if size else "", size),
        Record("cmsis_nn_bmm_params", "parameters", (*orders, both)),
        _shared(scaling),
        dims("input_dims", 1, 1, rows, depth),
        dims("filter_dims", 1, 1, outputs, depth),
        dims("output_dims", 1, 1, rows, outputs),
    )
    data = ("&input_dims", "input", "&filter_dims", "weights")
    return call(
        "arm_batch_matmul_s8",
        f"Product of {rows}x{depth} and {depth}x{outputs} matrices",
        arguments=("&context", "&parameters", "&scaling", *data, "&output_dims", "output"),
        operands=(Input(0, "input"), Input(1, "weights"), *scratch(size), Output(0, "output")),
        records=records,
        form="matmul",
        stem="matmul",
        work={"products": rows * outputs * depth, "outputs": rows * outputs},
    )


def _shared(scaling: LibraryScaling) -> Record:
    """Return the structure with the one scaling of all outputs."""
    fields = (str(scaling.multipliers[0]), "multiplier"), (str(scaling.shifts[0]), "shift")
    return Record("cmsis_nn_per_tensor_quant_params", "scaling", fields)


def _parameters(node: Node[FullyConnected], zero_point: int) -> Record:
    """Return the structure of a layer; `zero_point` is that of the weights."""
    return Record(
        "cmsis_nn_fc_params",
        "parameters",
        (
            (str(-node.input(0).type.zero_point), "added to every input"),
            (str(-zero_point), "added to every weight"),
            (str(node.output.type.zero_point), "added to every output"),
            clamp(node, node.op.activation),
        ),
    )


KERNELS = (CmsisFullyConnectedKernel(),)
