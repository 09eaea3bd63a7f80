"""Calls of the library in the generated C.

A generated function defines the library's structures and calls one of its functions. Structures
without pointers are `static const`, so the compiler places them in flash. The arguments are valid
by construction; so the returned status is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
"""Largest number of pixels or channels: the library counts them in 16 bits."""


@dataclass(frozen=True)
class Record:
    """A structure of the library in C: `kind name = {fields}`.

    Attributes:
        kind: C type.
        name: name of the variable.
        fields: C text and description of each field; the description may be empty.
        static: whether the structure is `static`: it has no pointers.
    """

    kind: str
    name: str
    fields: tuple[tuple[str, str], ...]
    static: bool = True

    @property
    def lines(self) -> list[str]:
        """A line of C for each field with its description; empty if one line suffices."""
        if self.kind == "cmsis_nn_dims" or not any(note for _, note in self.fields):
            return []
        ends = [","] * (len(self.fields) - 1) + [""]
        texts = [text + end for (text, _), end in zip(self.fields, ends, strict=True)]
        width = max(map(len, texts))
        notes = (f" /* {note} */" if note else "" for _, note in self.fields)
        return [f"{t:<{width}}{n}".rstrip() for t, n in zip(texts, notes, strict=True)]

    @property
    def note(self) -> str:
        """The descriptions of all fields, for a structure on one line."""
        return ", ".join(note for _, note in self.fields if note)

    @property
    def values(self) -> str:
        """The fields' values in braces, on one line."""
        return braced(*(text for text, _ in self.fields))


@dataclass(frozen=True)
class LibraryParameters(Parameters):
    """Variables of `backends/cmsis_nn/call.j2`.

    Attributes:
        title: text of the function's comment.
        records: structures that the function defines.
        statements: C statements that call the library.
    """

    title: str
    records: tuple[Record, ...]
    statements: tuple[str, ...]


def dims(name: str, n: int, h: int, w: int, c: int) -> Record:
    """Return the structure with the sizes of a tensor."""
    sizes = tuple((str(size), letter) for letter, size in zip("nhwc", (n, h, w, c), strict=True))
    return Record("cmsis_nn_dims", name, sizes)


def image_dims(name: str, type_: TensorType) -> Record:
    """Return the structure with the sizes of an `[n, h, w, c]` tensor."""
    n, h, w, c = type_.shape
    return dims(name, n, h, w, c)


def context(operand: str, size: int) -> Record:
    """Return the structure for the library's scratch; `operand` is empty if it needs none."""
    fields = ((operand or "NULL", ""), (str(size), ""))
    return Record("cmsis_nn_context", "context", fields, static=not operand)


def braced(*values: object) -> str:
    """Return a structure's or an array's values in braces, as clang-format spaces them."""
    return f"{{ {', '.join(map(str, values))} }}"


def pair(values: tuple[int, int]) -> str:
    """Return a (height, width) pair as the library's tile, which has the width first."""
    return braced(values[1], values[0])


def clamp(node: Node, activation: Activation) -> tuple[str, str]:
    """Return the field with the smallest and largest output."""
    limits = clamp_limits(activation, node.output.type, node.rounding)
    return braced(*limits), "smallest and largest output"


def scratch(size: int) -> tuple[Operand, ...]:
    """Return the parameter `scratch`, if any is needed."""
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
    """Return a kernel call that calls one of the library's functions.

    Args:
        function: name of the library's function.
        title: description of the computation, for the comment.
        arguments: C expressions; `&name` for a record.
        operands: the parameters of the generated function.
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
    """Return a kernel call that calls several of the library's functions in order; see `call`."""
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
    """Return the C statement of a call that ignores the status."""
    void = "" if function in _WITHOUT_STATUS else "(void)"
    return f"{void}{function}({', '.join(arguments)});"


_WITHOUT_STATUS = frozenset({"arm_concatenation_s8_x", "arm_softmax_s8"})


@dataclass(frozen=True)
class LibraryScaling:
    """The library's requantization: int32 `[o]` multipliers and shifts, as in TensorFlow Lite."""

    multipliers: Array
    shifts: Array

    @staticmethod
    def of(scales: Sequence[float], channels: int) -> LibraryScaling:
        """Return the scaling for `scales`: accumulator scale / output scale, one or per channel."""
        requantizer = Requantizer(tuple(scales), Rounding.TFLM)
        return LibraryScaling(
            np.asarray(per_channel(requantizer.multipliers, channels), np.int32),
            np.asarray(per_channel(requantizer.shifts, channels), np.int32),
        )

    def operands(self, padding: int = 0) -> tuple[Packed, Packed]:
        """Return the parameters `multipliers` and `shifts`, with `padding` zeros at the end."""
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
    """Both parameters in the library's structure; the library does not write to them."""


def refuse_data(node: Node, what: str, inputs: int = 1) -> Refusal | None:
    """Return why the library does not support the data; None if it does.

    The first inputs and the output must be quantized int8 with one scale each, and the rounding
    must be that of TensorFlow Lite Micro.

    Args:
        node: a node of any operator.
        what: name of the library's function, for the message.
        inputs: number of inputs to check.
    """
    types = [node.input(i).type for i in range(inputs)] + [node.output.type]
    for type_ in types:
        if type_.dtype is not DType.INT8 or type_.quant is None:
            return Refusal(f"{what} takes quantized i8 data, not {type_}.")
        if type_.quant.axis is not None:
            return Refusal(f"{what} takes data with one scale, not with one per channel.")
    if node.rounding is not Rounding.TFLM:
        rounding = "none" if node.rounding is None else node.rounding.value
        return Refusal(
            f"{what} rounds like TensorFlow Lite Micro, but the node's rounding is '{rounding}'."
        )
    return None


def refuse_sums(what: str, scaling: LibraryScaling, range_: tuple[Array, Array]) -> Refusal | None:
    """Return why the library cannot requantize sums of this range; None if it can.

    gemmlowp's left shift wraps; the library leaves overflow to the compiler. Its right
    shifts are defined up to 30 only.
    """
    if not fits_int32(range_):
        return Refusal(
            f"{what} sums in 32 bits, which could overflow with these weights and this bias."
        )
    largest = np.maximum(-range_[0], range_[1])
    if (largest << scaling.shifts.clip(0, 31).astype(np.int64) > INT32_MAX).any():
        return Refusal(
            f"{what} shifts sums to the left in 32 bits, which could overflow with this output "
            "scale."
        )
    if (scaling.shifts < -_LARGEST_RIGHT_SHIFT).any():
        return Refusal(
            f"{what} shifts sums to the right by at most {_LARGEST_RIGHT_SHIFT}, less than needed "
            "here."
        )
    return None


_LARGEST_RIGHT_SHIFT = 30


def refuse_sizes(what: str, *types: TensorType) -> Refusal | None:
    """Return why the library cannot count the sizes; None if all fit into 16 bits."""
    for type_ in types:
        if max(type_.shape, default=0) > LARGEST:
            return Refusal(
                f"{what} counts in 16 bits, but {type_} has an axis of more than {LARGEST}."
            )
    return None
