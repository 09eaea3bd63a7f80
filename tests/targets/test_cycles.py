"""The model of cycles, compared with times of small programs computed by hand from Arm's tables."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from smelt import targets
from smelt.boards.disassembly import Code, disassemble
from smelt.errors import ConfigError, ToolError
from smelt.targets.cycles import Counts, cycles, unknown
from smelt.targets.instructions import Instruction, Kind, instruction
from smelt.targets.timings import core

CORES = tuple(t.name for t in targets.available() if t.name.startswith("cortex-"))


def assembled(text: str, target: str, folder: Path) -> Code:
    """Assemble a text and return its code."""
    source = folder / "snippet.s"
    source.write_text(f".syntax unified\n.thumb\n.thumb_func\nsnippet:\n{dedent(text)}\n")
    flags = targets.get(target).arch_flags
    subprocess.run(
        ["arm-none-eabi-gcc", *flags, "-c", str(source), "-o", str(source.with_suffix(".o"))],
        check=True,
    )
    return disassemble(source.with_suffix(".o"), targets.get(target))


def timed(text: str, target: str, folder: Path, **counts: int) -> int:
    """Return the cycles of a snippet executed once; `counts` are those of its last instruction."""
    code = assembled(text, target, folder).instructions
    found = {address: Counts(executions=1) for address in code}
    last = max(found)
    found[last] = Counts(**({"executions": 1} | counts))
    return cycles(core(target), code, found)


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("target", "text", "expected"),
    [
        # Cortex-M0: a load takes 2 cycles, N words take 1 + N, or 4 + N with the program counter.
        ("cortex-m0", "movs r0, #1\n ldr r1, [r0]\n ldr r2, [r0]\n muls r1, r2", 6),
        ("cortex-m0", "ldmia r0!, {r1, r2, r3}\n stmia r0!, {r1, r2}\n push {r4, lr}", 4 + 3 + 3),
        ("cortex-m0plus", "ldr r1, [r0]\n adds r1, #1\n push {r4-r7, lr}", 2 + 1 + 6),
        # Cortex-M23: like M0+, with division.
        ("cortex-m23", "ldr r0, [r4]\n muls r0, r1\n sdiv r0, r1, r2\n movw r3, #9", 3 + 17 + 1),
        # Cortex-M3: a load after a load takes 1 cycle, as does a store with an immediate offset.
        ("cortex-m3", "ldr r0, [r4]\n ldr r1, [r4, #4]\n ldr r2, [r4, r5]", 2 + 1 + 1),
        ("cortex-m3", "ldr r0, [r4]\n ldr r1, [r0]", 2 + 2),
        ("cortex-m3", "ldr r0, [r4], #4\n ldr r1, [r4]", 2 + 2),
        ("cortex-m3", "str r0, [r4, #8]\n str r0, [r4, r5]", 1 + 2),
        ("cortex-m3", "mul r0, r1, r2\n mla r0, r1, r2, r3\n umull r0, r1, r2, r3", 1 + 2 + 4),
        ("cortex-m3", "smlal r0, r1, r2, r3\n udiv r0, r1, r2", 6 + 7),
        # Cortex-M4: a product takes 1 cycle, a float multiply-accumulate 3.
        ("cortex-m4", "smlad r0, r1, r2, r0\n smlal r0, r1, r2, r3\n mla r0, r1, r2, r3", 3),
        ("cortex-m4", "ldrd r0, r1, [r2]\n ldm r2, {r4-r7}\n strd r0, r1, [r2]", 3 + 5 + 3),
        ("cortex-m4", "vmul.f32 s0, s1, s2\n vfma.f32 s0, s1, s2", 1 + 3),
        ("cortex-m4", "vdiv.f32 s0, s1, s2\n vsqrt.f32 s0, s1", 14 + 14),
        ("cortex-m4", "vldmia r0!, {s0-s3}\n vldr s4, [r0]\n it eq\n addeq r0, #1", 5 + 2 + 1 + 1),
        # Cortex-M7: 2 instructions a cycle, unless the second needs the first or both multiply.
        ("cortex-m7", "add r0, r1\n add r2, r3\n add r4, r5\n add r6, r7", 2),
        ("cortex-m7", "add r0, r1\n add r2, r0\n mul r3, r4, r5\n mul r6, r4, r5", 3),
        # Cortex-M33: short instructions pair; a loaded value is available 1 cycle later.
        ("cortex-m33", "adds r0, r1, r2\n adds r3, r4, r5\n ldr r6, [r0]\n adds r6, #1", 1 + 1 + 2),
        # Cortex-M55: a vector instruction takes 2 cycles, one of them parallel to another unit.
        ("cortex-m55", "vldrb.8 q0, [r0]\n vldrb.8 q1, [r1]\n vmladava.s8 r2, q0, q1", 1 + 2 + 1),
        ("cortex-m55", "vmladava.s8 r2, q0, q1\n vldrb.8 q2, [r0]\n vmladava.s8 r4, q2, q1", 3),
        ("cortex-m55", "vadd.i32 q0, q0, q1\n add r0, r1\n vadd.i32 q0, q0, q1", 1 + 1 + 1),
        ("cortex-m55", "vldrb.s32 q0, [r0, q1]\n vpst\n vaddt.i32 q0, q0, q1", 4 + 1 + 1),
    ],
)  # fmt: skip
def test_cycles_of_straight_code_equal_hand_computed_ones(
    target: str, text: str, expected: int, tmp_path: Path
) -> None:
    assert timed(text, target, tmp_path) == expected


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("target", "branch", "not_taken", "taken"),
    [
        ("cortex-m0", "1: bne 1b", 1, 3),
        ("cortex-m0", "1: b 1b", 1, 3),
        ("cortex-m0", "bl snippet", 2, 4),
        ("cortex-m0", "bx lr", 1, 3),
        ("cortex-m0", "pop {r4, pc}", 4, 4 + 2),
        ("cortex-m0plus", "1: bne 1b", 1, 2),
        ("cortex-m0plus", "bl snippet", 2, 3),
        ("cortex-m0plus", "pop {r4, r5, pc}", 5, 3 + 3),
        ("cortex-m23", "1: cbz r0, 2f\n nop\n 2: bne 1b", 3, 4),
        ("cortex-m3", "1: bne 1b", 1, 3),
        ("cortex-m3", "pop {r4, pc}", 3, 5),
        ("cortex-m4", "bl snippet", 1, 3),
        ("cortex-m4", "tbb [pc, r0]", 2, 4),
        ("cortex-m55", "1: le lr, 1b", 0, 0),
    ],
)
def test_cycles_of_branches_equal_hand_computed_ones(
    target: str, branch: str, not_taken: int, taken: int, tmp_path: Path
) -> None:
    assert timed(branch, target, tmp_path) == not_taken
    assert timed(branch, target, tmp_path, taken=1) == taken


@pytest.mark.qemu
def test_cycles_of_a_loop_equal_hand_computed_ones(tmp_path: Path) -> None:
    """Sum ten words on a Cortex-M4: 1 + 10 * (2 + 1 + 1) + 9 taken branches and 1 not taken."""
    text = """
        movs r0, #0
    1:  ldr r1, [r2], #4
        add r0, r1
        subs r3, #1
        bne 1b
    """
    code = assembled(text, "cortex-m4", tmp_path).instructions
    first, *loop = sorted(code)
    counts = {first: Counts(1)} | {address: Counts(10) for address in loop}
    counts[loop[-1]] = Counts(10, taken=9)
    assert cycles(core("cortex-m4"), code, counts) == 1 + 10 * (2 + 1 + 1) + 9 * 3 + 1
    counts[loop[0]] = Counts(10, misaligned=4, flash_lines=3)
    assert cycles(core("cortex-m4"), code, counts) == 1 + 40 + 28 + 4
    assert cycles(core("cortex-m4"), code, counts, wait_states=5) == 1 + 40 + 28 + 4 + 5 * (9 + 3)


@pytest.mark.qemu
def test_a_misprediction_costs_cycles_on_cores_with_prediction(tmp_path: Path) -> None:
    for taken, expected in ((0, 10), (10, 10), (9, 10 + 6), (5, 10 + 5 * 6)):
        found = timed("1: bne 1b", "cortex-m7", tmp_path, executions=10, taken=taken)
        assert found == expected


MNEMONICS: Mapping[Kind, str] = {
    Kind.ALU: "adds addeq addseq.w sxtb16 sel uqsub8 cset bics teqne lslls mvnsne.w rsbsgt movcs",
    Kind.CONDITIONAL: "beq.n bls.n bcs.w ble.w blt.n cbz cbnz",
    Kind.CALL: "bl bleq",
    Kind.JUMP: "bx blx bxne",
    Kind.IT: "it itt ite ittte iteet",
    Kind.DSP_MUL: "smlad smladx smlabb smmulr smuad smlawt",
    Kind.LONG_MLA: "smlal umlal umaal smlald smlalbb",
    Kind.MLA: "mla mls",
    Kind.MUL: "muls mul.w mulne",
    Kind.LOOP_START: "dls wls dlstp.8 wlstp.32",
    Kind.LOOP_END: "le letp",
    Kind.UNKNOWN: "frobnicate ldrq vfrob",
}


@pytest.mark.parametrize("kind", MNEMONICS, ids=lambda kind: kind.name)
def test_mnemonics_have_their_kind(kind: Kind) -> None:
    for mnemonic in MNEMONICS[kind].split():
        assert instruction(0, 2, mnemonic, "r0, r1").kind is kind, mnemonic


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("text", "reads", "writes", "words"),
    [
        ("ldr r0, [r1, #4]!", "r1", "r0 r1", 1),
        ("ldr r0, [r1], #4", "r1", "r0 r1", 1),
        ("str r0, [r1], #4", "r0 r1", "r1", 1),
        ("ldrd sl, fp, [ip]", "r12", "r10 r11", 2),
        ("ldm r0!, {r1-r4, r9, lr}", "r0", "r0 r1 r2 r3 r4 r9 lr", 6),
        ("push {r4-r6, lr}", "sp r4 r5 r6 lr", "sp", 4),
        ("smlal r0, r1, r2, r3", "r0 r1 r2 r3", "r0 r1", 1),
        ("mla r0, r1, r2, r3", "r1 r2 r3", "r0", 1),
        ("cmp r0, r1", "r0 r1", "", 1),
        ("add r0, r1", "r0 r1", "r0", 1),
        ("vmladava.s8 r2, q0, q1", "r2 q0 q1", "r2", 1),
        ("vstrb.8 q0, [r3], #16", "q0 r3", "r3", 1),
        ("vpush {d8-d10}", "sp d8 d9 d10", "sp", 6),
        ("vldrh.s32 q0, [r1, q2, uxtw #1]", "r1 q2", "q0", 4),
    ],
)
def test_read_and_written_registers_are_found(
    text: str, reads: str, writes: str, words: int, tmp_path: Path
) -> None:
    (found,) = assembled(text, "cortex-m55", tmp_path).instructions.values()
    assert (found.reads, found.writes) == (set(reads.split()), set(writes.split()))
    assert found.registers == words


HELIUM = """
    vldrb.8 q0, [r0], #16
    vld20.8 {q0, q1}, [r0]
    vst43.16 {q0, q1, q2, q3}, [r0]!
    vldrw.u32 q0, [r0, q1, uxtw #2]
    vmladava.s8 r2, q0, q1
    vmlaldava.s16 r2, r3, q0, q1
    vrmlaldavha.s32 r2, r3, q0, q1
    vqrdmulh.s32 q0, q1, r3
    vqdmullb.s16 q0, q1, q2
    vmullt.s8 q0, q1, q2
    vmla.s8 q0, q1, r3
    vfma.f32 q0, q1, q2
    vaddva.s32 r0, q1
    vaddlva.s32 r0, r1, q1
    vmaxav.s8 r0, q1
    vabav.s8 r0, q1, q2
    vcmp.s8 gt, q0, q1
    vpsel q0, q1, q2
    vqmovnb.s32 q0, q1
    vmovlt.s8 q0, q1
    vqrshrnt.s32 q0, q1, #4
    vrshl.s32 q0, q1
    vshlc q0, r1, #8
    vidup.u32 q0, r2, #4
    vdup.32 q0, r1
    vmov q0[2], q0[0], r1, r2
    vmov.32 r1, q0[1]
    vctp.8 r3
    vpst
    vaddt.i32 q0, q1, q2
    vrev32.8 q0, q1
    vmvn q0, q1
    lctp
    sqrshrl r0, r1, #64, r2
"""


@pytest.mark.qemu
def test_helium_instructions_are_known(tmp_path: Path) -> None:
    code = assembled(HELIUM, "cortex-m55", tmp_path).instructions
    assert len(code) == len(HELIUM.split("\n")) - 2
    assert unknown(code, code) == ()
    kinds = {found.mnemonic: found.kind for found in code.values()}
    assert kinds["vmlava.s8"] is kinds["vqrdmulh.s32"] is kinds["vfma.f32"] is Kind.VECTOR_MUL
    assert kinds["vcmp.s8"] is kinds["vaddva.s32"] is kinds["vmovlt.s8"] is Kind.VECTOR
    assert kinds["vld20.8"] is Kind.VECTOR_MEMORY


def test_an_unknown_mnemonic_is_named_and_takes_a_cycle() -> None:
    code = {0: Instruction(0, 2, "frobnicate"), 2: instruction(2, 2, "adds", "r0, r1")}
    counts = {0: Counts(5), 2: Counts(5), 4: Counts(1)}
    assert unknown(code, counts) == ("(no instruction)", "frobnicate")
    assert cycles(core("cortex-m4"), code, counts) == 5 + 5 + 1


def test_targets_have_their_core() -> None:
    assert [core(name).name for name in CORES] == list(CORES)
    assert [name for name in CORES if core(name).estimate] == [
        "cortex-m23",
        "cortex-m7",
        "cortex-m33",
        "cortex-m55",
    ]
    with pytest.raises(ConfigError, match="no timings are known for target 'host'"):
        core("host")


@pytest.mark.qemu
def test_files_that_are_no_elf_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no ELF")
    with pytest.raises(ToolError, match="objdump cannot read"):
        disassemble(tmp_path / "text", targets.get("cortex-m4"))
