"""Tests of the assembly builder: it refuses operands that cannot be encoded, and an assembler makes
the instructions that it records."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from smelt import targets
from smelt.boards.disassembly import disassemble
from smelt.codegen.backends.armv6m import convolution_assembly as armv6m_block
from smelt.codegen.backends.armv6m import dense_assembly as armv6m_words
from smelt.codegen.backends.armv6m.instructions import Armv6m
from smelt.codegen.backends.armv7m import convolution_assembly as armv7m_block
from smelt.codegen.backends.armv7m import convolution_pairs_assembly as armv7m_products_assembly
from smelt.codegen.backends.armv7m.assembly import UnrolledLoop
from smelt.codegen.backends.armv7m.convolution_pairs_assembly import PairsOfTaps
from smelt.codegen.backends.armv7m.convolution_rows_assembly import LineSums, outputs_of_row
from smelt.codegen.backends.armv7m.dense_assembly import RowSums, row
from smelt.codegen.backends.armv7m.depthwise_3x3_assembly import SlidingLines, lines
from smelt.codegen.backends.armv7m.instructions import Armv7m, asr
from smelt.codegen.lower.assembly_builder import Assembler, Label
from smelt.codegen.lower.registers import LR, R0, R1, R2, R3, R4, R8, SP, EncodingError
from smelt.codegen.lower.requantization_32bit import ShortScaling
from smelt.codegen.lower.tap_groups import BlockSums, grouped
from smelt.codegen.text.assembly import asm_statement
from smelt.targets.instructions import Kind

ANY: Any = (
    R8  # `Any`: type checkers refuse a high register, but these tests need the error at run time
)


INVALID_ARMV6M: tuple[Callable[[Armv6m], object], ...] = (
    lambda a: a.muls(ANY, R1),
    lambda a: a.adds(R1, ANY, R2),
    lambda a: a.lsls(ANY, R1, 3),
    lambda a: a.strb(R1, ANY),
    lambda a: a.ldrsb(R1, R2, ANY),
    lambda a: a.cmp(R8, 3),
    lambda a: a.ldmia(R0, [R1, ANY]),
    lambda a: a.push([R4, ANY, LR]),
    lambda a: a.movs(R1, 256),
    lambda a: a.movs(R1, -1),
    lambda a: a.adds(R1, 256),
    lambda a: a.adds(R1, R2, 8),
    lambda a: a.subs(R1, -1),
    lambda a: a.lsls(R1, R2, 32),
    lambda a: a.asrs(R1, R2, 0),
    lambda a: a.ldr(R1, SP, 1024),
    lambda a: a.ldr(R1, SP, 6),
    lambda a: a.ldr(R1, SP, -4),
    lambda a: a.str_(R1, R2, 128),
    lambda a: a.strb(R1, R2, 32),
    lambda a: a.take(512),
    lambda a: a.ldmia(R0, [R2, R1]),
    lambda a: a.ldmia(R0, [R1, R1]),
    lambda a: a.ldmia(R0, []),
)


@pytest.mark.parametrize("wrong", INVALID_ARMV6M)
def test_armv6m_refuses_operands_that_cannot_be_encoded(wrong: Callable[[Armv6m], object]) -> None:
    a = Armv6m()
    with pytest.raises(EncodingError):
        wrong(a)
    assert not a.instructions


INVALID_ARMV7M: tuple[Callable[[Armv7m], object], ...] = (
    lambda a: a.mov(R8, 0x12345),
    lambda a: a.and_(R1, R2, 0x1FF),
    lambda a: a.sub(R1, R2, 4097),
    lambda a: a.movw(R1, 1 << 16),
    lambda a: a.addw(R1, R2, 4096),
    lambda a: a.adds(R1, 256),
    lambda a: a.muls(R1, R2, R3),
    lambda a: a.add(R1, R2, asr(R3, 32)),
    lambda a: a.ssat(R1, 33, asr(R3, 2)),
    lambda a: a.ldr(R1, R2, 4096),
    lambda a: a.strb(R1, R2, -1),
    lambda a: a.ldr_then(R1, R2, 256),
    lambda a: a.ldrd(R1, R2, SP, 6),
    lambda a: a.cbz(ANY, Label(1)),
    lambda a: a.ldmia(R1, [R1, R2]),
    lambda a: a.ldm(SP, [R2, R1]),
)


@pytest.mark.parametrize("wrong", INVALID_ARMV7M)
def test_armv7m_refuses_operands_that_cannot_be_encoded(wrong: Callable[[Armv7m], object]) -> None:
    a = Armv7m()
    with pytest.raises(EncodingError):
        wrong(a)
    assert not a.instructions


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "#0"), (255, "#255"), (32768, "#32768"), (255 << 15, "#8355840"), (0x3FC, "#1020"),
        (0x00FF00FF, "#0x00ff00ff"), (0xFF00FF00, "#4278255360"), (0x2B2B2B2B, "#724249387"),
    ],
)  # fmt: skip
def test_modified_immediates(value: int, text: str) -> None:
    a = Armv7m()
    a.mov(R1, value)
    assert a.text == f'        "mov r1, {text}\\n"'


def test_text_of_a_statement() -> None:
    a, done = Armv6m(), Label(3)
    a.describe("r0: inputs,\nr1: weights.")
    top = a.here(2)
    with a.repeat(2):
        a.ldmia(R0, [R1, R2])
    a.comment("A pixel.")
    a.b(done, "eq")
    a.bl(top, "far")
    a.place(done)
    assert a.text.split("\n") == [
        "        /*",
        "         * r0: inputs,",
        "         * r1: weights.",
        "         */",
        r'        "2:\n"',
        r'        ".rept 2\n"',
        r'        "ldmia r0!, {r1, r2}\n"',
        r'        ".endr\n"',
        "        /* A pixel. */",
        r'        "beq 3f\n"',
        r'        "bl 2b\n" /* far */',
        r'        "3:\n"',
    ]
    assert len(a.instructions) == 4
    assert [i.kind for i in a.instructions[:2]] == [Kind.LOAD_MANY] * 2


@pytest.mark.parametrize(("count", "condition"), [(127, "eq"), (1023, "")])
def test_branches_beyond_the_encodings_are_refused(count: int, condition: str) -> None:
    for beyond in (0, 1):
        back, onward, done = Armv6m(), Armv6m(), Label(1)
        top = back.here(1)
        with back.repeat(count - 1 + beyond):
            back.movs(R1, 1)
        onward.b(done, condition)
        with onward.repeat(count + 1 + beyond):
            onward.movs(R1, 1)
        if not beyond:
            back.b(top, condition)
            onward.place(done)
            continue
        with pytest.raises(EncodingError, match="too far"):
            back.b(top, condition)
        with pytest.raises(EncodingError, match="too far"):
            onward.place(done)


def test_wrong_uses_of_labels_are_refused() -> None:
    a, label = Armv6m(), Label(9)
    a.b(label)
    with pytest.raises(EncodingError, match="another label 9"):
        a.here(9)
    with pytest.raises(EncodingError, match="never placed"):
        _ = a.text
    with pytest.raises(EncodingError, match="several"), a.repeat(2):
        a.here(1)


def test_accesses_beyond_the_stack_frame_are_refused() -> None:
    a = Armv6m()
    with pytest.raises(EncodingError, match="beyond 8 bytes"), a.function(8):
        a.ldr(R1, SP, 8)
    b = Armv7m()
    with pytest.raises(EncodingError, match="beyond 8 bytes"), b.function(8):
        b.stm(SP, [R0, R1, R2])


def scaling(outputs: int) -> ShortScaling:
    ones = np.ones(outputs, np.int64)
    return ShortScaling(
        parts=np.stack([ones, ones]),
        offsets=ones,
        nudges=None,
        biases=None,
        drop=8,
        shift=20,
        zero_point=3,
        low=-128,
        high=127,
        base=-128,
    )


def scaling_with_nudges(outputs: int) -> ShortScaling:
    ones = np.ones(outputs, np.int64)
    return ShortScaling(
        parts=np.stack([ones] * 3),
        offsets=ones,
        nudges=ones,
        biases=ones,
        drop=8,
        shift=20,
        zero_point=3,
        low=-100,
        high=100,
        base=0,
    )


def sums_of(outputs: int, *, state: bool = False) -> BlockSums:
    weights = np.full((outputs, 90), 20, np.int8)
    return BlockSums(grouped(weights, "ram"), scaling(outputs), 2, outputs, state, True)


@pytest.mark.parametrize(("module", "wrong"), [
    (armv6m_block, 35), (armv6m_block, 36), (armv7m_block, 40),
])  # fmt: skip
def test_a_wrong_stack_offset_is_refused(
    module: ModuleType, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TOTALS", wrong)
    make: Callable[[BlockSums], Assembler] = module.block
    with pytest.raises(EncodingError):
        make(sums_of(5, state=True))


def code_of_each_kind() -> dict[str, Assembler]:
    """Return the code of a function of each kind, with all optional parts."""
    s, loop = scaling_with_nudges(5), UnrolledLoop(1, 2, 3)
    return {
        "armv6m_block": armv6m_block.block(sums_of(300)),
        "armv6m_words": armv6m_words.dense(s, 5, 33, 8, widened=True),
        "armv6m_bytes": armv6m_words.dense(s, 5, 36, 8, widened=False),
        "armv7m_block": armv7m_block.block(sums_of(300)),
        "armv7m_columns": lines(
            SlidingLines(
                pitch=12,
                outputs=10,
                triples=3,
                iterations=2,
                step=300,
                line_step=3000,
                held=8,
                repaired=True,
                scaling=s,
            )
        ),
        "armv7m_dense": row(
            RowSums(outputs=5, blocks=9, loop=loop, offset=100, repaired=True, common=3, scaling=s)
        ),
        "armv7m_products": armv7m_products_assembly.block(
            PairsOfTaps(
                steps=7,
                loop=loop,
                in_words=False,
                repaired=True,
                outputs=5,
                together=True,
                scaling=s,
            )
        ),
        "armv7m_rows": outputs_of_row(
            LineSums(
                stride=1,
                pitch=90,
                even=0,
                weights=22,
                loop=loop,
                repaired=True,
                outputs=5,
                blocks=2,
                scaling=s,
            )
        ),
        "armv7m_rows_2": outputs_of_row(
            LineSums(
                stride=2,
                pitch=90,
                even=42,
                weights=22,
                loop=loop,
                repaired=False,
                outputs=5,
                blocks=1,
                scaling=s,
            )
        ),
    }


@pytest.mark.parametrize("name", code_of_each_kind())
@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="no arm-none-eabi-gcc")
def test_recorded_instructions_equal_the_disassembly(name: str, tmp_path: Path) -> None:
    code, source = code_of_each_kind()[name], tmp_path / "block.c"
    target = "cortex-m0" if name.startswith("armv6m") else "cortex-m3"
    source.write_text(f"__attribute__((naked)) void block(void) {{\n{asm_statement(code.text)}}}\n")
    compiled = source.with_suffix(".o")
    flags = targets.get(target).arch_flags
    subprocess.run(["arm-none-eabi-gcc", *flags, "-c", source, "-o", compiled], check=True)
    found = list(disassemble(compiled, targets.get(target)).instructions.values())
    while found[-1].kind is Kind.HINT:
        found.pop()
    mine = code.instructions
    assert [i.kind for i in mine] == [i.kind for i in found]
    assert [(i.reads, i.writes) for i in mine] == [(i.reads, i.writes) for i in found]
    if target == "cortex-m0":
        assert [(i.address, i.size) for i in mine] == [(i.address, i.size) for i in found]
