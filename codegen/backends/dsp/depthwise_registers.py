"""The registers of sums and weights while a block of a depthwise convolution is computed."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.backends.dsp.depthwise_products import BlockProduct, OutputBlock, neighbors


class OutputSums:
    """The sums of a block, in registers r0 to r3 row by row.

    Args:
        columns: columns of the block.
        bias: the output whose register contains the bias, with which every sum starts; that
            output's sum must be the last to start. None if sums start with a product.
    """

    def __init__(self, columns: int, bias: tuple[int, int] | None) -> None:
        self._columns = columns
        self._bias = None if bias is None else self.register(bias)
        self._begun: set[tuple[int, int]] = set()

    def register(self, output: tuple[int, int]) -> str:
        """Return the register of an output's sum."""
        row, column = output
        return f"r{row * self._columns + column}"

    def add(self, product: BlockProduct, x: str, w: str) -> str:
        """Return the instruction that adds a product of registers `x` and `w` to its sum."""
        total, halves = self.register(product.output), product.halves
        before = total if product.output in self._begun else self._bias
        self._begun.add(product.output)
        if before is None:
            return f"smu{'ad' if halves == 'ad' else 'l' + halves} {total}, {x}, {w}"
        return f"smla{'d' if halves == 'ad' else halves} {total}, {x}, {w}, {before}"


class WeightRegisters:
    """The words of weights that are in registers, least recently used first.

    Args:
        block: the block of outputs.
        held: whether all words stay in registers from r4 on; otherwise, r4-r8 hold five of them.
    """

    def __init__(self, block: OutputBlock, held: bool) -> None:
        self._free = [] if held else [f"r{i}" for i in range(4, 9)]
        self.registers = {i: f"r{4 + i}" for i in range(len(block.weights))} if held else {}

    def load(self, words: Sequence[int]) -> list[str]:
        """Return the instructions that load missing words over the least recently used ones."""
        missing = sorted({word for word in words if word not in self.registers})
        for word in words:
            if word in self.registers:
                self.registers[word] = self.registers.pop(word)
        while len(self._free) < len(missing):
            self._free.append(self.registers.pop(next(iter(self.registers))))
        lines: list[str] = []
        for group in neighbors(missing):
            found = [self._free.pop() for _ in group]
            self.registers |= dict(zip(group, found, strict=True))
            lines += loaded_or_stored("ldr", found, f"[lr, #{4 * group[0]}]")
        return lines


def loaded_or_stored(name: str, registers: Sequence[str], address: str) -> list[str]:
    """Return the instruction that loads ("ldr") or stores ("str") one or two registers, if any."""
    double = "d" if len(registers) == 2 else ""
    return [f"{name}{double} {', '.join(registers)}, {address}"] if registers else []
