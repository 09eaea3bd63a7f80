"""Assembly that several kernels for the DSP extension share, as lists of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def word(register: str, number: int) -> list[str]:
    """Return the instructions that load the low 32 bits of a number into a register."""
    lower, upper = number & 0xFFFF, number >> 16 & 0xFFFF
    return [f"movw {register}, #{lower}", *([f"movt {register}, #{upper}"] if upper else [])]


def add(register: str, number: int, spare: str = "r9") -> list[str]:
    """Return the instructions that add a number to a register; they may change `spare`."""
    name, size = ("add", number) if number >= 0 else ("sub", -number)
    if size == 0:
        return []
    if size < 4096:
        return [f"{name} {register}, {register}, #{size}"]
    load = [f"movw {spare}, #{size % 65536}"]
    load += [f"movt {spare}, #{size >> 16}"] if size >> 16 else []
    return [*load, f"{name} {register}, {register}, {spare}"]


def span(first: int, count: int) -> str:
    """Return a list of `count` consecutive registers for an instruction, such as `r4-r7`."""
    return f"r{first}" if count == 1 else f"r{first}-r{first + count - 1}"


def next_words(registers: str, base: str) -> str:
    """Return the instruction that loads registers from address `base` and advances `base`.

    Args:
        registers: one register, or a list as in LDM.
        base: register of the address.
    """
    return (
        f"ldr {registers}, [{base}], #4" if registers.isalnum() else f"ldm {base}!, {{{registers}}}"
    )


def two_products(total: str, a: str, b: str, *, first: bool) -> str:
    """Return the instruction for `total += a[0] * b[0] + a[1] * b[1]`, with halfwords of `a`, `b`.

    The first products set the sum.
    """
    return f"smuad {total}, {a}, {b}" if first else f"smlad {total}, {a}, {b}, {total}"


def paired_products(
    weights: str, inputs: Sequence[str], both: Sequence[str], lower: Sequence[str], *, first: bool
) -> list[str]:
    """Return the instructions that add the products of a word of paired weights to sums.

    Args:
        weights: register with two halfwords of `weight0 + 256 * weight1`; overwritten (see `tile`).
        inputs: registers with one word of inputs for each pixel.
        both: registers of the pixels' `sum0 + 256 * sum1`.
        lower: registers of the pixels' `sum0`.
        first: whether these are the first products of the sums.
    """
    sums, parts = (
        [two_products(s, weights, x, first=first) for s, x in zip(totals, inputs, strict=True)]
        for totals in (both, lower)
    )
    return [*sums, f"sxtb16 {weights}, {weights}", *parts]


def for_each(name: str, registers: Sequence[str], lines: Sequence[str]) -> list[str]:
    r"""Return the lines once for each register, repeated by the assembler (`.irp`).

    The lines contain `\name` in place of the register.
    """
    if len(registers) == 1:
        return [line.replace(f"\\{name}", registers[0]) for line in lines]
    return [f".irp {name}, {', '.join(registers)}", *lines, ".endr"] if registers else []


def assembled(lines: Iterable[str]) -> int:
    """Return the number of instructions that the lines assemble to, with all repetitions."""
    count, times = 0, [1]
    for line in lines:
        directive, _, rest = line.partition(" ")
        if directive == ".rept":
            times.append(times[-1] * int(rest))
        elif directive == ".irp":
            times.append(times[-1] * rest.count(","))
        elif directive == ".endr":
            times.pop()
        elif directive != ".balign" and not line.endswith(":"):
            count += times[-1]
    return count


def repeated(times: int, lines: Sequence[str]) -> list[str]:
    """Return the lines `times` times, repeated by the assembler (`.rept`)."""
    if times == 1:
        return [*lines]
    return [f".rept {times}", *lines, ".endr"] if times else []
