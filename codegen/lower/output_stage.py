"""The output stage of every sum of products: bias, scale, zero point, clamp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from smelt.codegen.lower.c_expressions import Store, stored
from smelt.codegen.lower.kernel import Operand, Packed
from smelt.codegen.lower.requantization import Requantization, Scaling, fits_int32
from smelt.codegen.text.expressions import offset, times
from smelt.codegen.text.helpers import uses_in
from smelt.codegen.text.literals import c_float, c_int
from smelt.ir import Array, DType, Node, Rounding, TensorType
from smelt.ops.arithmetic.fixed_point import INT32_MAX, Activation, reduced_multiplier


@dataclass(frozen=True)
class OutputStage:
    """C of an output, given a sum of products.

    Each output channel has a row of constants, which C code addresses by a pointer `channel`.

    Attributes:
        text: C expression of the stored output, with `%s` for the sum without its bias.
        rows: `[o, fields]` constants, int32 or float32; None if there are none.
        note: How results are rounded, for the function's comment; empty for floats.
        wide: Whether sums need 64 bits.
        shift: The right shift of products; 0 if it is not a literal.
        numbers: The numbers that `text` reads from the layer's struct, by field.
        shared: The same stage for layers that share a body: numbers of all channels are in the
            struct. None if all its numbers are literals.
    """

    text: str
    rows: Array | None
    note: str = ""
    wide: bool = False
    shift: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    shared: OutputStage | None = None

    @staticmethod
    def of(
        node: Node,
        activation: Activation,
        bias: Array | None,
        scales: Sequence[float] = (),
        range_: tuple[Array, Array] | None = None,
    ) -> OutputStage:
        """Return the output stage of a node.

        Args:
            node: Has the output's type and the rounding.
            activation: The activation fused into the node.
            bias: `[o]`, with zero points folded in if the sum needs it; None without a bias.
            scales: Accumulator scales divided by the output scale, if quantized.
            range_: Smallest and largest sums, int64 `[o]` each, if quantized.
        """
        y = node.output.type
        if y.quant is None and y.dtype is DType.INT32:
            if bias is None or not bias.any():
                return OutputStage("%s", None)
            return OutputStage("%s + channel[0]", bias.astype(np.int32).reshape(-1, 1))
        if y.quant is None or range_ is None:
            store = stored(activation, y)
            if bias is None or not bias.any():
                return OutputStage(store.text, None)
            rows = bias.astype(np.float32).reshape(-1, 1)
            return OutputStage(store.text % "%s + channel[0]", rows)
        bias = np.zeros(len(range_[0]), np.int64) if bias is None else bias.ravel()
        requantization = Requantization.of(node, scales, activation, range_)
        if node.rounding is Rounding.TFLM16:
            return _reduced(node, activation, bias, requantization)
        return _quantized(node, activation, bias, requantization)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the function's comment."""
        return (f"Results: {self.note}.",) if self.note else ()

    @property
    def details(self) -> dict[str, str]:
        """What functions' names say about it if they differ in nothing else; see `KernelCall`."""
        if not self.note:
            return {}
        twice = self.note.startswith("gemmlowp")
        shift = f"shift{self.shift}" if self.shift else ""
        return {
            "rounding": "rounds_twice" if twice else "rounds_once",
            "shift": shift,
            "scale": self.text,
        }

    @property
    def fields(self) -> int:
        """Number of constants per channel."""
        return 0 if self.rows is None else self.rows.shape[1]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The parameter `channels`, if there are constants."""
        return () if self.rows is None else (Packed("channels", self.rows),)

    @property
    def uses(self) -> frozenset[str]:
        """The helpers and headers that `text` uses."""
        return uses_in([self.text])

    def index(self, channel: str) -> str:
        """Return the C expression of the offset of a channel's row."""
        if channel.isdigit():
            return str(int(channel) * self.fields)
        if self.fields == 1:
            return channel
        return times(f"({channel})" if " " in channel else channel, self.fields)

    def row(self, channel: str, c_type: str = "int32_t") -> str:
        """Return the C statement that defines `channel`; empty without constants."""
        return self._row(channel, f"const {c_type} *const ")

    def _row(self, channel: str, pointer: str) -> str:
        row = offset("channels", self.index(channel))
        return f"{pointer}channel = {row};" if self.fields else ""

    def stores(self, channel: str, *outputs: tuple[str, str]) -> tuple[str, ...]:
        """Return C statements that store sums of a channel, given (element, C of the sum) pairs."""
        return self.stores_in_order([(channel, outputs)])

    def stores_in_order(
        self, channels: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    ) -> tuple[str, ...]:
        """Return C statements that store sums of neighboring channels, beginning with the lowest.

        Args:
            channels: for each channel its C expression, and (element, C of the sum) pairs.
        """
        lines: list[str] = []
        pointer = "const int32_t *const " if len(channels) == 1 else "const int32_t *"
        for i, (channel, outputs) in enumerate(channels):
            if self.fields:
                step = "++channel;" if self.fields == 1 else f"channel += {self.fields};"
                lines.append(step if i else self._row(channel, pointer))
            lines += (f"{element} = {self.output(total)};" for element, total in outputs)
        return tuple(lines)

    def output(self, total: str) -> str:
        """Return the C expression of the stored output, given the sum without its bias."""
        return self.text % total


def _quantized(
    node: Node, activation: Activation, bias: Array, requantization: Requantization
) -> OutputStage:
    """Return the int8 stage: one multiply-add and shift if proved exact, else the model's steps."""
    # For 16-bit outputs the proof would take too long: 2^16 outputs in every channel.
    narrow = node.output.type.dtype.size == 1
    scaling = requantization.scaling if narrow else None
    if scaling is None and requantization.reals is not None:
        return _rounded(node.output.type, bias, requantization, requantization.reals)
    store = stored(activation, node.output.type, saturate=True, rounding=node.rounding)
    raised = 0
    if (requantization.low, requantization.high) == (-128, 127):
        store, raised = Store("saturated(%s)"), 128

    def stage(columns: _Columns) -> OutputStage:
        note, shift = "gemmlowp's two roundings", 0
        if scaling is None:
            result = _in_two_roundings(columns, bias, requantization, raised)
        else:
            result, shift = _in_one_rounding(columns, bias, scaling, raised), scaling.shift
            model = "gemmlowp" if requantization.reals is None else "ONNX"
            note = f"one rounding, proved equal to {model}'s"
        if columns.in_struct:
            shift = 0
        text = store.text % result
        return OutputStage(text, columns.rows, note, shift=shift, numbers=columns.numbers)

    return replace(stage(_Columns()), shared=stage(_Columns(in_struct=True)))


def _in_one_rounding(columns: _Columns, bias: Array, scaling: Scaling, raised: int) -> str:
    """Return the C of an output plus `raised`: one multiply-add and shift."""
    multiplier = columns.add(scaling.multipliers, "multiplier")
    offsets = scaling.offsets + (raised << scaling.shift)
    if (offsets == offsets[0]).all():
        total, start = _plus(columns.add(bias, "bias")), columns.start(int(offsets[0]))
    else:
        words = offsets + bias * scaling.multipliers
        total, start = "%s", f"wide({columns.add(words >> 32)}, {columns.add(_low_word(words))})"
    if columns.in_struct and scaling.shift >= _WORD:
        shift = columns.field("shift", scaling.shift - _WORD)
        return f"scale_high({total}, {multiplier}, {start}, {shift})"
    return f"scale({total}, {multiplier}, {start}, {scaling.shift})"


def _in_two_roundings(
    columns: _Columns, bias: Array, requantization: Requantization, raised: int
) -> str:
    """Return the C of an output plus `raised`: the steps of gemmlowp."""
    total = _plus(columns.add(bias, "bias"))
    multiplier = columns.add(requantization.multipliers, "multiplier")
    if requantization.shifts_right:
        shifts = np.where(requantization.multipliers == 0, 1, -requantization.shifts)
        result = f"scale_twice({total}, {multiplier}, {columns.add(shifts, 'shift')})"
    else:
        shift = columns.add(requantization.shifts, "shift")
        result = f"requantize({total}, {multiplier}, {shift})"
        if requantization.zero_point_may_overflow:
            result = f"clamp({result}, -0x40000000, 0x3fffffff)"
    zero_point = requantization.zero_point + raised
    if columns.in_struct:
        return f"{result} + {columns.field('zero_point', zero_point)}"
    return offset(result, zero_point)


def _reduced(
    node: Node, activation: Activation, bias: Array, requantization: Requantization
) -> OutputStage:
    """Return the 16-bit stage: 16-bit multipliers, one rounding, 32-bit sums where these suffice.

    `(sum * m + 2^(s-1)) >> s` stays the same if `m`, `2^(s-1)` and `2^s` are doubled. This makes
    the shifts of all channels equal.
    """
    range_ = requantization.lowest, requantization.highest
    wide = not (fits_int32(range_) and fits_int32((range_[0] - bias, range_[1] - bias)))
    multipliers = reduced_multiplier(requantization.multipliers)
    shifts = _REDUCED_BITS - requantization.shifts
    shifts = np.where(multipliers == 0, shifts[multipliers.argmax()], shifts)
    columns, last = _Columns(), int(shifts.max())
    if wide or last - int(shifts.min()) > _REDUCED_BITS:
        total = _plus(columns.add_wide(bias))
        result = f"scale_wide({total}, {columns.add(multipliers)}, {columns.add(shifts)})"
    else:
        total, doubled = _plus(columns.add(bias)), columns.add(multipliers << (last - shifts))
        result = f"scale({total}, {doubled}, INT64_C({1 << (last - 1)}), {last})"
    store = stored(activation, node.output.type, saturate=True)
    text = store.text % offset(result, requantization.zero_point)
    return OutputStage(text, columns.rows, "multipliers of 16 bits, one rounding", wide)


class _Columns:
    """Constants that differ among channels.

    Equal ones are literals in the C text or, if `in_struct`, fields of the layer's struct.
    """

    def __init__(self, *, in_struct: bool = False) -> None:
        self.in_struct = in_struct
        self.numbers: dict[str, int] = {}
        self._columns: list[Array] = []

    def add(self, values: Array, field: str = "") -> str:
        """Return the C expression of a channel's int32; `field` is its name in a struct."""
        if (values == values[0]).all():
            value = int(values[0])
            return self.field(field, value) if self.in_struct and field and value else c_int(value)
        self._columns.append(values)
        return f"channel[{len(self._columns) - 1}]"

    def field(self, name: str, value: int) -> str:
        """Return the C expression of a number in the layer's struct."""
        self.numbers[name] = value
        return f"layer->{name}"

    def start(self, value: int) -> str:
        """Return the C expression of an int64 that is equal for all channels."""
        if not self.in_struct:
            return f"INT64_C({value})"
        high = self.field("high", value >> _WORD)
        low = self.field("low", int(_low_word(np.array(value))))
        return f"wide({high}, {low})"

    def add_wide(self, values: Array) -> str:
        """Return the C expression of a channel's int64."""
        if np.abs(values).max() <= INT32_MAX:
            return self.add(values)
        return f"wide({self.add(values >> 32)}, {self.add(_low_word(values))})"

    @property
    def rows(self) -> Array | None:
        """int32 `[o, fields]`."""
        return np.stack(self._columns, axis=1).astype(np.int32) if self._columns else None


def _rounded(
    y: TensorType, bias: Array, requantization: Requantization, reals: Array
) -> OutputStage:
    """Return the product with a float, rounded to the nearest integer, ties to even."""
    columns: list[Array] = []
    if (bias == bias[0]).all():
        total = _plus(c_int(int(bias[0])))
    else:
        columns.append(bias.astype(np.int32))
        total = _plus("channel[0]")
    if (reals == reals[0]).all():
        real = c_float(float(reals[0]))
    else:
        # All fields of a row are int32, so the float is stored as its bits.
        columns.append(reals.view(np.int32))
        real = f"float_from_bits(channel[{len(columns) - 1}])"
    product = f"(float)({total}) * {real}"
    rows = np.stack(columns, axis=1) if columns else None
    note = "a float32 product, ties to even"
    low, high, zero_point = requantization.low, requantization.high, requantization.zero_point
    if not requantization.allows_nearest:
        limits = f"{c_float(low - zero_point)}, {c_float(high - zero_point)}"
        result = offset(f"rounded({product}, {limits})", zero_point)
        return OutputStage(f"({y.dtype.c_name})({result})", rows, note)
    if (low, high) == (-128, 127):
        return OutputStage(
            f"saturated({offset(f'nearest({product})', zero_point + 128)})", rows, note
        )
    result = offset(f"nearest({product})", zero_point)
    return OutputStage(f"({y.dtype.c_name})clamp({result}, {low}, {high})", rows, note)


def _plus(bias: str) -> str:
    return offset("%s", int(bias) if bias.lstrip("-").isdecimal() else bias)


_WORD = 32
"""Bits of a word."""

_REDUCED_BITS = 15
"""Bits of a multiplier, and the largest number of times that one can be doubled."""


def _low_word(values: Array) -> Array:
    """Return the low 32 bits of int64, as int32."""
    return values.astype(np.uint64).astype(np.uint32).astype(np.int32)
