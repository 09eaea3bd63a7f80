"""Instructions of cores with the DSP extension that several kernels share, as lists of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def word(register: str, number: int) -> list[str]:
    """Instructions that load the low 32 bits of a number into a register."""
    lower, upper = number & 0xFFFF, number >> 16 & 0xFFFF
    return [f"movw {register}, #{lower}", *([f"movt {register}, #{upper}"] if upper else [])]


def add(register: str, number: int, spare: str = "r9") -> list[str]:
    """Instructions that add a number to a register; they may change the spare one."""
    name, size = ("add", number) if number >= 0 else ("sub", -number)
    if size == 0:
        return []
    if size < 4096:
        return [f"{name} {register}, {register}, #{size}"]
    load = [f"movw {spare}, #{size % 65536}"]
    load += [f"movt {spare}, #{size >> 16}"] if size >> 16 else []
    return [*load, f"{name} {register}, {register}, {spare}"]


def span(first: int, count: int) -> str:
    """So many registers from a numbered one on, as they are listed."""
    return f"r{first}" if count == 1 else f"r{first}-r{first + count - 1}"


def next_words(registers: str, base: str) -> str:
    """The instruction that loads listed registers from where another points, and moves it on."""
    return (
        f"ldr {registers}, [{base}], #4" if registers.isalnum() else f"ldm {base}!, {{{registers}}}"
    )


def two_products(total: str, a: str, b: str, *, first: bool) -> str:
    """The instruction that adds the products of two halfwords each to a sum, or begins the sum."""
    return f"smuad {total}, {a}, {b}" if first else f"smlad {total}, {a}, {b}, {total}"


def paired_products(
    weights: str, inputs: Sequence[str], both: Sequence[str], lower: Sequence[str], *, first: bool
) -> list[str]:
    """Instructions that multiply a word of paired weights with a word of each of some inputs.

    The sums in `both` are those of the lower channel plus 256 times the other's, those in `lower`
    the lower channel's alone (see `tile`). The weights are changed.
    """
    sums, parts = (
        [two_products(s, weights, x, first=first) for s, x in zip(totals, inputs, strict=True)]
        for totals in (both, lower)
    )
    return [*sums, f"sxtb16 {weights}, {weights}", *parts]


def for_each(name: str, registers: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The lines once for each register, as the assembler repeats them.

    In the lines, a backslash and the name stand for the register.
    """
    if len(registers) == 1:
        return [line.replace(f"\\{name}", registers[0]) for line in lines]
    return [f".irp {name}, {', '.join(registers)}", *lines, ".endr"] if registers else []


def assembled(lines: Iterable[str]) -> int:
    """How many instructions the assembler makes of the lines, with all repetitions."""
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
    """The lines so many times, as the assembler repeats them; nothing for no times."""
    if times == 1:
        return [*lines]
    return [f".rept {times}", *lines, ".endr"] if times else []
