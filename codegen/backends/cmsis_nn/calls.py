"""How a call of the library stands in the generated C.

A function of the network fills the library's structures, which the compiler places in flash where
they hold no pointers, and calls one of its functions. The arguments are valid by construction,
so that the status which the library returns is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np

from smelt.codegen.backends.cmsis_nn import HEADER
from smelt.codegen.lower.kernel import KernelCall, Operand, Packed, Parameters, Refusal, Scratch
from smelt.codegen.lower.requantization import fits_int32
from smelt.ir import Array, DType, Node, Rounding, TensorType
from smelt.ops.arithmetic.fixed_point import (
    INT32_MAX,
    Activation,
    Requantizer,
    clamp_limits,
    per_channel,
)

LARGEST = 65535
"""What fits into the 16 bits in which the library counts pixels and channels."""


@dataclass(frozen=True)
class Record:
    """A structure of the library: `kind name = {fields}`; each field is C text and what it is."""

    kind: str
    name: str
    fields: tuple[tuple[str, str], ...]
    static: bool = True

    @property
    def lines(self) -> list[str]:
        """A line for each field and what it is, where the fields are not of one kind."""
        if self.kind == "cmsis_nn_dims" or not any(note for _, note in self.fields):
            return []
        ends = [","] * (len(self.fields) - 1) + [""]
        texts = [text + end for (text, _), end in zip(self.fields, ends, strict=True)]
        width = max(map(len, texts))
        notes = (f" /* {note} */" if note else "" for _, note in self.fields)
        return [f"{t:<{width}}{n}".rstrip() for t, n in zip(texts, notes, strict=True)]

    @property
    def note(self) -> str:
        """What the fields are, where they stand on one line."""
        return ", ".join(note for _, note in self.fields if note)

    @property
    def values(self) -> str:
        """The fields' values, on one line."""
        return ", ".join(text for text, _ in self.fields)


@dataclass(frozen=True)
class LibraryParameters(Parameters):
    """The variables of `backends/cmsis_nn/call.j2`: the comment, structures, and statements."""

    title: str
    records: tuple[Record, ...]
    statements: tuple[str, ...]


def dims(name: str, n: int, h: int, w: int, c: int) -> Record:
    """The sizes of a tensor."""
    sizes = tuple((str(size), letter) for letter, size in zip("nhwc", (n, h, w, c), strict=True))
    return Record("cmsis_nn_dims", name, sizes)


def image_dims(name: str, type_: TensorType) -> Record:
    """The sizes of an `[n, h, w, c]` tensor."""
    n, h, w, c = type_.shape
    return dims(name, n, h, w, c)


def context(operand: str, size: int) -> Record:
    """Working memory for the library; `operand` is empty where it needs none."""
    fields = ((operand or "NULL", ""), (str(size), ""))
    return Record("cmsis_nn_context", "context", fields, static=not operand)


def pair(values: tuple[int, int]) -> str:
    """A tile: the library gives the width before the height."""
    return f"{{{values[1]}, {values[0]}}}"


def clamp(node: Node, activation: Activation) -> tuple[str, str]:
    """The field that holds the least and greatest output."""
    low, high = clamp_limits(activation, node.output.type, node.rounding)
    return f"{{{low}, {high}}}", "least and greatest output"


def scratch(size: int) -> tuple[Operand, ...]:
    """The parameter `scratch`, where there is any."""
    return (Scratch("scratch", DType.INT8, size),) if size else ()


def call(
    function: str,
    title: str,
    *,
    arguments: Sequence[str],
    operands: Sequence[Operand],
    work: Mapping[str, int],
    form: str,
    stem: str,
    records: Sequence[Record] = (),
    in_place: tuple[tuple[int, int], ...] = (),
) -> KernelCall:
    """The call of one of the library's functions.

    Args:
        function: its name.
        title: what is computed, for the comment.
        arguments: C expressions; `&name` for a record.
        operands: the parameters of the network's own function.
        work: see `KernelCall.work`.
        form: see `KernelCall.form`.
        stem: see `KernelCall.stem`.
        records: structures that the arguments refer to.
        in_place: see `KernelCall.in_place`.
    """
    return calls(
        [(function, arguments)],
        title,
        operands=operands,
        work=work,
        form=form,
        stem=stem,
        records=records,
        in_place=in_place,
    )


def calls(
    functions: Sequence[tuple[str, Sequence[str]]],
    title: str,
    *,
    operands: Sequence[Operand],
    work: Mapping[str, int],
    form: str,
    stem: str,
    records: Sequence[Record] = (),
    in_place: tuple[tuple[int, int], ...] = (),
) -> KernelCall:
    """Calls of several of the library's functions, in order; see `call`."""
    names = ", ".join(dict.fromkeys(name for name, _ in functions))
    return KernelCall(
        template="backends/cmsis_nn/call.j2",
        stem=stem,
        parameters=LibraryParameters(
            f"{title}, by CMSIS-NN's {names}.",
            tuple(records),
            tuple(_statement(name, given) for name, given in functions),
        ),
        operands=tuple(operands),
        uses={HEADER},
        in_place=in_place,
        summary=f"CMSIS-NN's {names}",
        form=f"cmsis_nn_{form}",
        work={**work, "calls": 1},
    )


def _statement(function: str, arguments: Sequence[str]) -> str:
    """The C statement of a call, without its status; further lines stand in the function's body."""
    void = "" if function in _WITHOUT_STATUS else "(void)"
    lines = wrap(
        ", ".join(arguments), _WIDTH - len(function), expand_tabs=False, break_long_words=False
    )
    between = "\n" + " " * 8
    return f"{void}{function}({between.join(lines)});"


_WIDTH = 88
"""Columns of a function's name and its arguments on a line."""

_WITHOUT_STATUS = frozenset({"arm_concatenation_s8_x", "arm_softmax_s8"})


@dataclass(frozen=True)
class LibraryScaling:
    """How the library requantizes: int32 `[o]` multipliers and shifts, as TensorFlow Lite's."""

    multipliers: Array
    shifts: Array

    @staticmethod
    def of(scales: Sequence[float], channels: int) -> LibraryScaling:
        """Those of accumulator scales over output scale, one or one per channel."""
        requantizer = Requantizer(tuple(scales), Rounding.TFLM)
        return LibraryScaling(
            np.asarray(per_channel(requantizer.multipliers, channels), np.int32),
            np.asarray(per_channel(requantizer.shifts, channels), np.int32),
        )

    def operands(self, padding: int = 0) -> tuple[Packed, Packed]:
        """The parameters `multipliers` and `shifts`, with zeros for channels that there are not."""
        return (
            Packed("multipliers", np.pad(self.multipliers, (0, padding))),
            Packed("shifts", np.pad(self.shifts, (0, padding))),
        )

    record = Record(
        "cmsis_nn_per_channel_quant_params",
        "scaling",
        (("(int32_t *)multipliers", ""), ("(int32_t *)shifts", "")),
        static=False,
    )
    """The two as the library takes them, which does not write to them."""


def refuse_data(node: Node, what: str, inputs: int = 1) -> Refusal | None:
    """None if the first inputs and the output are quantized int8, requantized as the library does.

    Args:
        node: of any operator.
        what: the library's function, for the sentence.
        inputs: how many inputs are data.
    """
    types = [node.input(i).type for i in range(inputs)] + [node.output.type]
    for type_ in types:
        if type_.dtype is not DType.INT8 or type_.quant is None:
            return Refusal(f"{what} takes quantized i8 data, not {type_}.")
        if type_.quant.axis is not None:
            return Refusal(f"{what} takes data of one scale, not of one per channel.")
    if node.rounding is not Rounding.TFLM:
        rounding = "none" if node.rounding is None else node.rounding.value
        return Refusal(f"{what} rounds as TensorFlow Lite Micro does, not by '{rounding}'.")
    return None


def refuse_sums(what: str, scaling: LibraryScaling, range_: tuple[Array, Array]) -> Refusal | None:
    """None if sums of this range are requantized within 32 bits, else why not.

    gemmlowp's left shift wraps, which the library leaves to the compiler; its right shifts are
    defined up to 30.
    """
    if not fits_int32(range_):
        return Refusal(f"{what} sums in 32 bits, which these weights and bias could leave.")
    largest = np.maximum(-range_[0], range_[1])
    if (largest << scaling.shifts.clip(0, 31).astype(np.int64) > INT32_MAX).any():
        return Refusal(
            f"{what} shifts sums to the left in 32 bits, which this output scale makes too few."
        )
    if (scaling.shifts < -_RIGHTMOST).any():
        return Refusal(
            f"{what} shifts sums to the right by at most {_RIGHTMOST}, less than needed here."
        )
    return None


_RIGHTMOST = 30


def refuse_sizes(what: str, *types: TensorType) -> Refusal | None:
    """None if all sizes can be counted in 16 bits, else why not."""
    for type_ in types:
        if max(type_.shape, default=0) > LARGEST:
            return Refusal(
                f"{what} counts in 16 bits, and {type_} has more than {LARGEST} elements a side."
            )
    return None
