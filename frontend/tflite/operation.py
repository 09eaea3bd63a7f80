"""Conversion of one operator of the file to nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend.tflite.operands import TfliteOperands
from smelt.ir import Array, DType, Node, Op, Quant, Rounding, TensorType, Value
from smelt.ir.evaluate import compute
from smelt.ops.tensor.reshape import Reshape
from smelt.ops.tensor.transpose import Transpose

ARITHMETIC = frozenset({DType.FLOAT32, DType.INT8})
ANY_TYPE = frozenset(
    {DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64, DType.BOOL}
)


class TfliteOperation(TfliteOperands):
    """An operator of the file that a converter replaces by nodes."""

    def emit(
        self,
        op: Op,
        *inputs: Value | None,
        moves_data: bool = False,
        same_rows: bool = False,
        output: int | None = None,
    ) -> None:
        """Add the node that replaces the operator.

        Args:
            op: the operator of the IR.
            inputs: its operands.
            moves_data: whether data is only moved, so that the node needs no rounding.
            same_rows: whether the file may declare other leading dimensions for the same rows; a
                reshape is added then.
            output: index of the output that the node computes; None for all outputs.

        Raises:
            ModelError: operands, options and the file's declared output types are contradictory.
            UnsupportedError: the shape of an output is known only at run time.
        """
        made_here = slice(None) if output is None else slice(output, output + 1)
        tensors = self._stored.outputs[made_here]
        inferred = self._inferred(op, inputs, len(tensors))
        outputs = tuple(
            self._shaped(tensor, made) for tensor, made in zip(tensors, inferred, strict=True)
        )
        results = tuple(
            self._result(made, value, same_rows)
            for made, value in zip(inferred, outputs, strict=True)
        )
        present = [v for v in (*inputs, *outputs) if v is not None]
        if not all(v is None or v.is_constant for v in inputs):
            for value in present:
                require_one_scale(value, str(self))
        rounds = not moves_data and any(v.type.is_quantized for v in present)
        node = Node(op, inputs, results, self.origin, Rounding.TFLM if rounds else None)
        self._check(node)
        if results == outputs and all(v is None or v.is_constant for v in inputs):
            self._fold(node, tensors)
            return
        self._network.add(node)
        for result, value in zip(results, outputs, strict=True):
            if result is not value:
                reshape = Reshape(value.type.shape)
                self._network.add(Node(reshape, (result,), (value,), self.origin))

    def emit_stateful(
        self,
        op: Op,
        *inputs: Value | None,
        states: Sequence[int],
        shape: tuple[int, ...],
        order: tuple[int, ...] | None,
    ) -> None:
        """Add a node with states. Its first result is the operator's output.

        Args:
            op: the operator of the IR. Its last operands are the states before an inference, its
                results the output and the states after it.
            inputs: its other operands.
            states: indices of the file's operands that are states.
            shape: shape of each state.
            order: permutation from the node's result to the output; None for no transpose.

        Raises:
            ModelError: operands and the file's declared output type are contradictory.
            UnsupportedError: an operand is not a variable tensor.
        """
        for value in (v for v in inputs if v is not None):
            require_one_scale(value, str(self))
        before = tuple(self._network.state(self._operand(i), shape) for i in states)
        first, *_ = self._inferred(op, (*inputs, *before), 1 + len(before))
        output = self._network.value(self._tensor(self._stored.outputs, 0, "output"))
        if order is None:
            made = self._result(first, output, same_rows=False)
        else:
            type_ = TensorType(first.shape, first.dtype, output.type.quant)
            made = Value(f"{output.name}:steps", type_)
        after = tuple(Value(f"{v.name}:after", v.type) for v in before)
        rounding = Rounding.TFLM if made.type.is_quantized else None
        node = Node(op, (*inputs, *before), (made, *after), self.origin, rounding)
        self._check(node)
        self._network.add(node)
        for old, new in zip(before, after, strict=True):
            self._network.update(old, new)
        if order is not None:
            self.emit(Transpose(order), made, moves_data=True)

    def _result(self, made: TensorType, value: Value, same_rows: bool) -> Value:
        """Return the file's `value`, or a value that a reshape turns into it; see `emit`."""
        stored = value.type
        if (made.shape, made.dtype) == (stored.shape, stored.dtype):
            return value
        if same_rows and _rows(made) == _rows(stored):
            name = self._network.unique(f"{value.name}:rows")
            return Value(name, TensorType(made.shape, made.dtype, stored.quant))
        self.refuse_open_shapes()
        raise ModelError(
            f"{self} computes {made}, but the file declares '{value.name}' as {stored}"
        )

    def derived(self, name: str, array: Array, quant: Quant | None) -> Value:
        """Return a constant computed from constants of the file, which others may read too."""
        return Value.constant(self._network.unique(name), array, quant)

    def step(self, op: Op, *inputs: Value, name: str = "step") -> Value:
        """Add a node with one output that needs no rounding, before the nodes that `emit` adds.

        Returns its output, with the name of the operator's output followed by `name`. If all
        inputs are constant, the output is a constant.
        """
        (made,) = self._inferred(op, inputs, 1)
        quant = op.output_quant([v.type for v in inputs])
        title = self._network.unique(f"{self._network.value(self._stored.outputs[0]).name}:{name}")
        value = Value(title, TensorType(made.shape, made.dtype, quant))
        node = Node(op, inputs, (value,), self.origin)
        self._check(node)
        if all(v.is_constant for v in inputs):
            (array,) = compute(node, [v.data for v in inputs])
            return Value.constant(title, array, quant)
        self._network.add(node)
        return value

    def _check(self, node: Node) -> None:
        """Run the node's check, and name the file's operator in its errors."""
        try:
            node.op.check(node)
        except ModelError as error:
            if str(error).startswith(str(self)):
                raise
            raise ModelError(f"{self}: {error}") from error

    def _fold(self, node: Node, tensors: Sequence[int]) -> None:
        """Compute a node of constants, because later operators may need it as weights."""
        arrays = compute(node, [None if v is None else v.data for v in node.inputs])
        for tensor, array in zip(tensors, arrays, strict=True):
            self._network.set_constant(tensor, array)

    def set_constant(self, array: Array) -> None:
        """Use a constant array as the operator's output."""
        made = TensorType(array.shape, DType.of(array))
        tensor = self._tensor(self._stored.outputs, 0, "output")
        self._result(made, self._shaped(tensor, made), same_rows=False)
        self._network.set_constant(tensor, array)

    def _shaped(self, tensor: int, made: TensorType) -> Value:
        """Return the value of an output; `made` gives the dimensions that the file leaves open."""
        value = self._network.value(tensor)
        declared = self._network.declared(tensor)
        if value.type.shape == made.shape or len(declared) != len(made.shape):
            return value
        if any(n not in (-1, own) for n, own in zip(declared, made.shape, strict=True)):
            return value
        return self._network.shaped(tensor, made.shape)

    def _inferred(
        self, op: Op, inputs: Sequence[Value | None], outputs: int
    ) -> tuple[TensorType, ...]:
        """Return the types of the results of `op`, which must be `outputs` in number."""
        try:
            inferred = op.infer([None if v is None else v.type for v in inputs])
        except ModelError as error:
            self.refuse_open_shapes()
            raise ModelError(f"{self}: {error}") from error
        if len(inferred) != outputs:
            raise ModelError(f"{self} has {outputs} outputs, but must have {len(inferred)}")
        for made in inferred:
            if made.size == 0 and not all(v is None or v.is_constant for v in inputs):
                raise UnsupportedError(f"{self} makes an empty tensor {made}: remove it")
        return inferred

    def fold(self, source: Value) -> None:
        """Use a constant, converted to float32, as the operator's output."""
        self._network.fold(self._tensor(self._stored.outputs, 0, "output"), source)


def require_one_scale(value: Value, where: str) -> None:
    """Raise `ModelError` if a tensor that is not constant has scales along an axis.

    TensorFlow Lite's 8-bit specification has such scales only for weights and biases.
    """
    quant = value.type.quant
    if value.is_constant or quant is None or quant.is_per_tensor:
        return
    raise ModelError(
        f"{where}: tensor '{value.name}' {value.type} has {len(quant.scale)} scales, along "
        f"dimension {quant.axis}, but it is not constant: only weights and biases may be quantized "
        "per channel; convert the network with one scale for each activation"
    )


def _rows(type_: TensorType) -> tuple[DType, int, tuple[int, ...]]:
    """Return what tensors with the same rows have in common: element type, size, row length."""
    return type_.dtype, type_.size, type_.shape[-1:]


@dataclass(frozen=True)
class Converter:
    """A row of a converter table.

    Attributes:
        convert: adds to the graph what the operator becomes.
        dtypes: element types of data (one operand and the results) that it takes.
        shape_operands: operands that only repeat what the results' shapes say already, unless the
            file leaves more than one dimension open; what computes them need not be supported.
        data: which operand is data.
    """

    convert: Callable[[TfliteOperation], None]
    dtypes: frozenset[DType] = ARITHMETIC
    shape_operands: frozenset[int] = frozenset()
    data: int = 0
