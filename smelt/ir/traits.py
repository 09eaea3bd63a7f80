"""What an operator says of itself, so that nothing needs to know it by its class.

Passes, the quantizer and the proofs ask these questions. The answers that an operator inherits are
right for every operator: they only leave optimizations out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from smelt.ir.activation import Activation
from smelt.ir.axes import Axes, broadcast
from smelt.ir.channels import ChannelRule
from smelt.ir.homogeneity import Homogeneity
from smelt.ir.onnx_form import OnnxForm
from smelt.ir.weights import WeightsRule

if TYPE_CHECKING:
    from smelt.ir.graph import Node, Op


class Traits:
    """The part of `Op` that a new operator may declare besides what it computes."""

    elementwise: ClassVar[bool] = False
    """Each element of the result is computed from those in its place in the computed operands.

    Operands are broadcast; that of constants may be tables.
    """
    moves_data: ClassVar[bool] = False
    """The elements of the results are elements of operands, or constants: none is computed."""
    chooses_by: ClassVar[tuple[int, ...]] = ()
    """Of an operator that moves data, the operands that say which elements, and hold none."""
    is_view: ClassVar[bool] = False
    """The result is the first operand's memory under another shape: nothing is done."""
    converts: ClassVar[bool] = False
    """The result is the operand, in another element type or quantization."""
    exact: ClassVar[bool] = False
    """Every machine computes the same real numbers. What moves data need not say so."""
    index_outputs: ClassVar[tuple[int, ...]] = ()
    """The results that are indices: right or wrong, whatever the operands' rounding errors."""
    length_operand: ClassVar[int | None] = None
    """The operand, if any, that tells it a size known at run time: it computes all rows at once."""
    settles: ClassVar[bool] = False
    """Results have an ordinary size, whatever that of the operands is."""
    sixteen_bits: ClassVar[bool] = False
    """It computes quantized numbers of 16 bits as TensorFlow Lite does."""

    channel_rule: ClassVar[ChannelRule[Any] | None] = None
    """What it does to channels of quantized numbers; None where it may need and mix them all."""
    weights_rule: ClassVar[WeightsRule[Any] | None] = None
    """How it multiplies data by weights, its first two operands; None where it has none."""
    quantized_weights: ClassVar[bool] = False
    """It multiplies quantized data by weights, by the rules of TensorFlow Lite."""

    @property
    def fused_activation(self) -> Activation | None:
        """The clamp at its end, `NONE` where none is fused yet; None where none can be."""
        return None

    def with_activation(self, activation: Activation) -> Op:
        """The operator with another `fused_activation`; only where it has one."""
        raise NotImplementedError(f"{type(self).__name__} with {activation}")

    def is_identity(self, node: Node) -> bool:
        """Whether the result is the first operand, as it is stored."""
        return False

    def is_told_length(self, node: Node) -> bool:
        """Whether the node has a `length_operand`."""
        return self.length_operand is not None and node.optional(self.length_operand) is not None

    def selects(self, node: Node) -> int:
        """How many leading operands the results' elements are taken from as they are; 0: others.

        They may be chosen by their order, as a maximum is. Numbers that are stored alike, each in
        eight bits too, may take the place of these operands' real numbers.
        """
        if not self.moves_data:
            return 0
        return self.chooses_by[0] if self.chooses_by else len(node.inputs)

    def invariants(self, node: Node) -> int:
        """How many last operands are the last inputs of all graphs in the operator, every time."""
        return 0

    def grows(self, node: Node) -> bool:
        """Whether results may be far larger than all operands."""
        return False

    def homogeneity(self, node: Node) -> Sequence[Homogeneity]:
        """The ways in which a positive factor of each channel goes through; none where it may not.

        Where there are several, one of them holds.
        """
        return ()

    def objection(self, node: Node) -> str | None:
        """Why the quantizer must leave the node in float, in one sentence; None where it need not.

        What `check` refuses need not be said again.
        """
        return None

    def onnx_form(self, node: Node) -> OnnxForm | None:
        """The operator of ONNX that computes the same of real numbers; None where it takes more.

        What takes more, or has no form, is written by a function in `smelt.quant.qdq`, or refused.
        """
        return None

    def row_rule(self, node: Node, axes: Sequence[int | None]) -> bool:
        """Whether each row of the results is computed from the same row of the operands.

        Args:
            node: with this operator.
            axes: the axis along which each operand has rows; None for one that has none.
        """
        return self.elementwise

    def axes_rule(self, node: Node) -> Axes | None:
        """Which axes of operands and results are the same; None where they must stay as they are.

        Transpositions go through a node that says so.
        """
        return broadcast(node, lambda _: node.op, elementwise=True) if self.elementwise else None
