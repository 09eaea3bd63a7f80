"""FullyConnected; with computed weights, it is the library's product of matrices."""

from __future__ import annotations

import numpy as np

from smelt.codegen.kernels.base import Input, Kernel, KernelCall, Operand, Output, Packed, Request
from smelt.codegen.kernels.c.products import bias_with_zero_point, constant_bias, sums
from smelt.codegen.kernels.cmsis_nn import buffers
from smelt.codegen.kernels.cmsis_nn.buffers import Variant, variant_of
from smelt.codegen.kernels.cmsis_nn.calls import (
    Record,
    Scaling,
    call,
    clamp,
    context,
    dims,
    refuse_data,
    refuse_sums,
    scratch,
)
from smelt.ir import DType, Node
from smelt.ops.fully_connected import FullyConnected, fully_connected_scales
from smelt.targets import Target


class FullyConnectedKernel(Kernel):
    """Rows of inputs times constant weights, or times computed ones where there is no bias."""

    op = FullyConnected

    def supports(self, node: Node, target: Target) -> str | None:
        """See `Kernel.supports`."""
        del target
        weights, bias = node.input(1), node.optional(2)
        what = "arm_fully_connected_s8" if weights.is_constant else "arm_batch_matmul_s8"
        if bias is not None and not weights.is_constant:
            return f"{what} adds no bias."
        if bias is not None and not bias.is_constant:
            return f"{what} is called with a constant bias only."
        reason = refuse_data(node, what, inputs=1 if weights.is_constant else 2)
        type_, quant = weights.type, weights.type.quant
        fits = type_.dtype is DType.INT8 and quant is not None and len(set(quant.zero_point)) == 1
        if reason is None and not fits:
            return f"{what} takes i8 weights of one zero point, not {type_}."
        return reason or refuse_sums(what, _scaling(node), sums(node, 0))

    def lower(self, node: Node, request: Request) -> KernelCall:
        """See `Kernel.lower`."""
        op, variant = node.op, variant_of(request.target)
        if not isinstance(op, FullyConnected):
            raise TypeError(f"{op.name} is no FullyConnected")
        if node.input(1).is_constant:
            return _dense(node, op, variant)
        return _product(node, op, variant)


def _dense(node: Node, op: FullyConnected, variant: Variant) -> KernelCall:
    weights, scaling = node.input(1), _scaling(node)
    outputs, depth = weights.type.shape
    rows = node.input(0).type.size // depth
    shared = len(set(zip(scaling.multipliers, scaling.shifts, strict=True))) == 1
    # The MVE variant multiplies stored elements; the rest of each sum is the context's.
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
        _parameters(node, op, "cmsis_nn_fc_params"),
        _shared(scaling) if shared else Scaling.record,
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


def _product(node: Node, op: FullyConnected, variant: Variant) -> KernelCall:
    outputs, depth = node.input(1).type.shape
    rows = node.input(0).type.size // depth
    size = buffers.matmul(variant, outputs)
    dense = _parameters(node, op, "cmsis_nn_fc_params")
    both = f"{{{dense.values}}}", "added to inputs, weights, outputs; least and greatest output"
    orders = ("false", "the first matrix is as it is"), ("false", "so is the second")
    records = (
        context("scratch" if size else "", size),
        Record("cmsis_nn_bmm_params", "parameters", (*orders, both)),
        _shared(_scaling(node)),
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


def _scaling(node: Node) -> Scaling:
    x, weights, y = node.input(0).type, node.input(1).type, node.output.type
    scales = fully_connected_scales(x, weights, y, node.rounding)
    return Scaling.of(scales, weights.shape[0])


def _shared(scaling: Scaling) -> Record:
    """The one scaling of all outputs."""
    fields = (str(scaling.multipliers[0]), "multiplier"), (str(scaling.shifts[0]), "shift")
    return Record("cmsis_nn_per_tensor_quant_params", "scaling", fields)


def _parameters(node: Node, op: FullyConnected, kind: str) -> Record:
    quant = node.input(1).type.quant
    zero_point = 0 if quant is None else quant.zero_point[0]
    return Record(
        kind,
        "parameters",
        (
            (str(-node.input(0).type.zero_point), "added to every input"),
            (str(-zero_point), "added to every weight"),
            (str(node.output.type.zero_point), "added to every output"),
            clamp(node, op.activation),
        ),
    )


KERNELS = (FullyConnectedKernel(),)
