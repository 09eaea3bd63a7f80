"""Properties that operators declare, so that passes need no code for single operators.

Passes, the quantizer and the proofs read them. The defaults are correct for every operator: they
only prevent optimizations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from smelt.ir.activation import Activation
from smelt.ir.axes import Axes, broadcast
from smelt.ir.channels import ChannelRule
from smelt.ir.homogeneity import Homogeneity
from smelt.ir.onnx_form import OnnxForm
from smelt.ir.row_window import RowWindow
from smelt.ir.weights import WeightsRule

if TYPE_CHECKING:
    from smelt.ir.graph import Node, Op


class Traits:
    """The part of `Op` that a new operator may declare besides its computation."""

    elementwise: ClassVar[bool] = False
    """Each element of the result is computed from the operands' elements at the same position.

    Operands are broadcast. Constant operands may be lookup tables instead.
    """
    moves_data: ClassVar[bool] = False
    """Elements of the results are copies of operands' elements, or constants."""
    chooses_by: ClassVar[tuple[int, ...]] = ()
    """Operands that only select elements, for an operator that moves data: indices, conditions."""
    is_view: ClassVar[bool] = False
    """The result is the first operand's memory with another shape, so no code runs."""
    converts: ClassVar[bool] = False
    """The result is the operand, converted to another element type or quantization."""
    exact: ClassVar[bool] = False
    """Every machine computes the same real numbers. No need to declare it if `moves_data`."""
    index_outputs: ClassVar[tuple[int, ...]] = ()
    """The results that are indices: they must match exactly, despite operands' rounding errors."""
    length_operand: ClassVar[int | None] = None
    """Index of the operand with a run-time length, if any: the node computes all rows at once."""
    settles: ClassVar[bool] = False
    """Results have a moderate size whatever the size of the operands is."""
    sixteen_bits: ClassVar[bool] = False
    """It computes 16-bit quantized numbers as TensorFlow Lite does."""

    channel_rule: ClassVar[ChannelRule[Any] | None] = None
    """How channels of quantized tensors may be removed; None if all of them are always needed."""
    weights_rule: ClassVar[WeightsRule[Any] | None] = None
    """How it multiplies data by weights, its first two operands; None if it has no weights."""
    quantized_weights: ClassVar[bool] = False
    """It multiplies quantized data by weights as TensorFlow Lite does."""

    @property
    def fused_activation(self) -> Activation | None:
        """The clamp at its end, `NONE` if none is fused; None if the operator cannot have one."""
        return None

    def with_activation(self, activation: Activation) -> Op:
        """Return the operator with another `fused_activation`, if it can have one."""
        raise NotImplementedError(f"{type(self).__name__} with {activation}")

    def is_identity(self, node: Node) -> bool:
        """Return whether the stored result always equals the stored first operand."""
        return False

    def has_length_operand(self, node: Node) -> bool:
        """Return whether the node has a `length_operand`."""
        return self.length_operand is not None and node.optional(self.length_operand) is not None

    def selects(self, node: Node) -> int:
        """Return how many leading operands the results' elements are copied from; 0 if none.

        The copied elements may be chosen by comparison, as by a maximum. If these operands and the
        results have the same quantization, the node may work on stored numbers in place of real
        ones.
        """
        if not self.moves_data:
            return 0
        return self.chooses_by[0] if self.chooses_by else len(node.inputs)

    def invariants(self, node: Node) -> int:
        """Return how many last operands are the last inputs of all the operator's graphs.

        These inputs are the same in every iteration.
        """
        return 0

    def grows(self, node: Node) -> bool:
        """Return whether results may be far larger than all operands."""
        return False

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """Return the ways in which a positive factor per channel can propagate through the node.

        An empty sequence means that no factor can. If there are several ways, one of them applies.
        """
        return ()

    def objection(self, node: Node) -> str | None:
        """Return why the quantizer must leave the node in float, in one sentence; else None.

        Reasons for which `check` raises need not be repeated here.
        """
        return None

    def onnx_form(self, node: Node) -> OnnxForm | None:
        """Return the ONNX operator that computes the same real numbers; None if it takes several.

        `smelt.quant.qdq` has functions for operators that take several ONNX operators. The export
        refuses the others.
        """
        return None

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Return whether each row of the results is computed from the same row of the operands.

        Args:
            node: a node with this operator.
            axes: for each operand, the axis that its rows are counted along; None if it has none.
        """
        return self.elementwise

    def row_window(self, node: Node, axis: int) -> RowWindow | None:
        """Return the window that slides along an axis of the operands with rows; None if none does.

        Operands with rows have as many dimensions as the result. By default, each row of the result
        is computed from the same row of all of them, if `row_rule` says so.
        """
        y = node.outputs[0].type.shape
        axes = [
            axis if v is not None and v.data is None and len(v.type.shape) == len(y) else None
            for v in node.inputs
        ]
        return RowWindow() if self.row_rule(node, axes) else None

    def row_sums(self, node: Node, *, last: bool) -> Op | None:
        """Return the operator that adds rows to the sums of the rows before; None if none can.

        It computes a node whose result depends on all rows, and on nothing but their sums. Its
        operands are some rows of the node's operand and, unless they are the first ones, the sums
        of the rows before: int32, of the result's shape. It returns the new sums or, if the rows
        are the `last` ones, the node's result. The rows may be added in any order.
        """
        return None

    def with_rows(self, axis: int, rows: int) -> Op:
        """Return the operator that makes this number of rows along an axis, from the first on."""
        return cast("Op", self)

    def with_row_padding(self, axis: int, before: int, after: int) -> Op:
        """Return the operator with this padding along the axis of a window of several rows."""
        if before or after:
            raise NotImplementedError(f"{type(self).__name__} with padding along axis {axis}")
        return cast("Op", self)

    def axes_rule(self, node: Node) -> Axes | None:
        """Return which axes of operands and results correspond; None if all must stay in place.

        Transposes can be moved across the node as the result describes.
        """
        return broadcast(node, lambda _: node.op, elementwise=True) if self.elementwise else None
