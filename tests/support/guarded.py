"""Run kernel calls alone on a simulated core that detects every stray access.

Everything that a call reads is placed at the end of a memory next to which accesses fault, first
one end, then the other. What it writes has guard bytes on both sides. Then the call runs in place
of each operand that it may overwrite. The program prints `passed`, or the first failure.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smelt.codegen.lower.kernel import Input, LayerStruct, Packed
from smelt.codegen.schedule.shared_symbols import Functions, struct_type
from smelt.codegen.text.helpers import preamble
from smelt.codegen.text.literals import c_elements, c_lines
from smelt.ir import Array, DType
from smelt.targets import get
from tests.support.kernels_host import PREFIX, Run, struct_definitions

_IN_PLACE = 64
"""The first number of an edge that stands for an operand that is overwritten."""


@dataclass(frozen=True)
class Core:
    """A simulated core: its target, QEMU's machine, and the memories of the program.

    Accesses right before and after the memory `edges` fault.
    """

    target: str
    machine: str
    code: tuple[int, int]
    constants: tuple[int, int]
    data: tuple[int, int]
    edges: tuple[int, int]


CORES = {
    "m7": Core(
        "cortex-m7",
        "mps2-an500",
        (0x0000_0000, 0x10_0000),
        (0x0010_0000, 0x30_0000),
        (0x2000_0000, 0x10_0000),
        (0x6000_0000, 0x6100_0000),
    ),
    "m55": Core(
        "cortex-m55",
        "mps3-an547",
        (0x1000_0000, 0x8_0000),
        (0x1100_0000, 0x20_0000),
        (0x3000_0000, 0x8_0000),
        (0x3100_0000, 0x3140_0000),
    ),
}


def said_on(core: Core, runs: Sequence[Run], folder: Path, more: Sequence[str] = ()) -> str:
    """Run all runs in one program and return its output: `passed`, or what failed in which run.

    Args:
        core: one of `CORES`.
        runs: the calls with their data.
        folder: for the program's files.
        more: more compiler arguments: include folders, archives.
    """
    source, script, elf = folder / "guarded.c", folder / "guarded.ld", folder / "guarded.elf"
    source.write_text(_source(core, runs))
    regions = zip(
        ("CODE", "CONSTANTS", "DATA"), (core.code, core.constants, core.data), strict=True
    )
    memories = "\n".join(f"{n} : ORIGIN = {o}, LENGTH = {s}" for n, (o, s) in regions)
    script.write_text(_LINKER % memories)
    flags = (*get(core.target).arch_flags, "-O2", "-std=c99", "-nostartfiles", "--specs=nano.specs")
    command = ("arm-none-eabi-gcc", *flags, f"-Wl,-T,{script}", str(source), *more, "-o", str(elf))
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(
        ["qemu-system-arm", "-machine", core.machine, "-display", "none", "-monitor", "none",
         "-serial", "none", "-semihosting-config", "enable=on,target=native", "-kernel", str(elf)],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    what, *numbers = (ran.stdout + ran.stderr).split() or ["nothing"]
    if not numbers:
        return what
    run = runs[int(numbers[0])]
    edge = int(numbers[1])
    where = (
        f"operand {edge // 2} at an edge" if edge < _IN_PLACE else f"in place of {edge - _IN_PLACE}"
    )
    return f"{what} of {run.name}, {where}, sample {numbers[2]}"


def _source(core: Core, runs: Sequence[Run]) -> str:
    functions = Functions(PREFIX)
    names = [functions.add(run.entry.node, run.entry.call) for run in runs]
    definitions = functions.all()
    before = preamble(*(f.uses for f in definitions))
    headers = dict.fromkeys(("stdint.h", "string.h", *before.headers))
    parts = [_run(i, run, name) for i, (run, name) in enumerate(zip(runs, names, strict=True))]
    low, high = core.edges
    return "\n".join(
        [
            *(f"#include <{header}>" for header in headers),
            f"#define LOW ((uint8_t *){low:#x})\n#define HIGH ((uint8_t *){high:#x})",
            f"#define IN_PLACE {_IN_PLACE}",
            *struct_definitions([run.entry for run in runs]),
            *(f"void {f.name}({f.signature});" for f in definitions),
            *before.helpers,
            *(f.definition for f in definitions),
            _PROGRAM,
            *(definition for definition, _ in parts),
            f"static const run_t runs[] = {{ {', '.join(row for _, row in parts)} }};",
            _MAIN,
        ]
    )


def _run(number: int, run: Run, function: str) -> tuple[str, str]:
    """Return the C definitions of a run's data, and its row in the table."""
    lines: list[str] = []
    rows: list[str] = []
    arguments: list[str] = []
    overwritten = {operand for output, operand in run.entry.overwritten() if output == 0}
    places: list[int] = []
    position = 0
    for operand in run.entry.call.operands:
        name, input_ = f"data{number}_{len(rows)}", isinstance(operand, Input)
        buffer = None
        if isinstance(operand, Packed | LayerStruct):
            kind, size, array = (
                f"const {DType.of(operand.array).c_name}",
                operand.array.nbytes,
                operand.array,
            )
            if isinstance(operand, LayerStruct):
                kind = f"const {struct_type(PREFIX, operand).name}"
        elif isinstance(operand, Input) and run.entry.node.input(operand.index).is_constant:
            array, input_ = run.entry.node.input(operand.index).array, False
            kind, size = f"const {DType.of(array).c_name}", array.nbytes
        else:
            if isinstance(operand, Input) and operand.index in overwritten:
                places.append(len(rows))
            buffer = list(run.entry.buffers().values())[position]
            position += 1
            kind, size = ("const " if input_ else "") + buffer[1].c_name, buffer[1].size * buffer[2]
            array = None
            if isinstance(operand, Input):
                place = [v for v in run.entry.node.inputs if v is not None and not v.is_constant]
                index = place.index(run.entry.node.input(operand.index))
                array = np.concatenate([sample[index].ravel() for sample in run.samples])
        arguments.append(f"({kind} *)p[{len(rows)}]")
        if array is not None:
            lines.append(_constant(name, array))
        step = size if input_ else 0
        rows.append(f"{{ {name if array is not None else 'NULL'}, {size}, {step} }}")
    expected = np.concatenate([array.ravel() for array in run.expected])
    lines += [
        _constant(f"expected{number}", expected),
        f"static const operand_t operands{number}[] = {{ {', '.join(rows)} }};",
        f"static void call{number}(void **p) {{\n    {function}({', '.join(arguments)});\n}}",
    ]
    mask = sum(1 << place for place in places)
    row = f"{len(rows)}, {len(run.samples)}, {mask}, operands{number}, expected{number}"
    row = f"{{ {row}, call{number} }}"
    return "\n".join(lines), row


def _constant(name: str, array: Array) -> str:
    lines = "\n".join(c_lines(c_elements(array)))
    return f"static const {DType.of(array).c_name} {name}[{array.size}] = {{\n{lines}\n}};"


_PROGRAM = """
#define GUARD 64
#define PLACED 0x40000
typedef struct {
    const void *data; /* NULL for what the call writes */
    int size, step;
} operand_t;

typedef struct {
    int count, samples;
    int overwritten; /* a bit for each operand that the output, the last one, may overwrite */
    const operand_t *operands;
    const void *expected;
    void (*call)(void **p);
} run_t;

extern uint32_t stack_top[];
int main(void);
void Reset_Handler(void);
void Fault_Handler(void);

static uint8_t pool[65536] __attribute__((aligned(16)));
static int run_now, edge_now, sample_now;

static void semihost(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void finish(const char *what, int count) {
    static char text[64];
    const int numbers[3] = { run_now, edge_now, sample_now };
    int n = 0;
    while (*what != 0) {
        text[n++] = *what++;
    }
    for (int i = 0; i < count; ++i) {
        text[n++] = ' ';
        for (int power = 1000; power > 0; power /= 10) {
            text[n++] = (char)('0' + numbers[i] / power % 10);
        }
    }
    text[n++] = '\\n';
    semihost(4, text);
    semihost(0x18, (const void *)0x20026);
    for (;;) {
    }
}

void Fault_Handler(void) {
    finish("fault", 3);
}

void Reset_Handler(void) {
    *(volatile uint32_t *)0xe000ed88u |= 0xf00000u; /* floats and vectors */
    __asm__ volatile("dsb\\n\\tisb" ::: "memory");
    main();
}

typedef struct {
    uint32_t *stack;
    void (*handlers[15])(void);
} vectors_t;

__attribute__((section(".vectors"), used)) static const vectors_t vectors = {
    stack_top, { Reset_Handler, Fault_Handler, Fault_Handler, Fault_Handler, Fault_Handler,
                 Fault_Handler, Fault_Handler, 0, 0, 0, 0, 0, 0, 0, 0 },
};

/*
 * Edge 2 i: operand i up to the end of the memory; edge 2 i + 1: from its start on;
 * edge IN_PLACE + i: operand i at the address of the output.
 */
static void check(const run_t *run, int sample, int edge) {
    void *p[16];
    int written = GUARD, read = 64;
    const operand_t *const in = edge < IN_PLACE ? NULL : &run->operands[edge - IN_PLACE];
    memset(pool, 0xA5, sizeof pool);
    for (int i = 0; i < run->count; ++i) {
        const operand_t *const o = &run->operands[i];
        if (o->data == 0) {
            const int size = in != NULL && i == run->count - 1 ? in->size : o->size;
            p[i] = pool + written;
            memset(p[i], 0x5A, (size_t)size);
            written += (size + GUARD + 15) / 16 * 16;
            continue;
        }
        p[i] = edge == 2 * i ? HIGH - o->size : edge == 2 * i + 1 ? LOW : HIGH - PLACED + read;
        memcpy(p[i], (const uint8_t *)o->data + sample * o->step, (size_t)o->size);
        read += (o->size + 15) / 16 * 16;
    }
    if (in != NULL) {
        p[edge - IN_PLACE] = p[run->count - 1];
        memcpy(p[run->count - 1], (const uint8_t *)in->data + sample * in->step, (size_t)in->size);
    }
    run->call(p);
    for (int i = 0; i < run->count; ++i) {
        const operand_t *const o = &run->operands[i];
        const uint8_t *const begin = p[i];
        const int size = in != NULL && i == run->count - 1 ? in->size : o->size;
        for (int k = 0; o->data == 0 && k < GUARD; ++k) {
            if (begin[-1 - k] != 0xA5 || begin[size + k] != 0xA5) {
                finish("guard", 3);
            }
        }
        const uint8_t *const expected = (const uint8_t *)run->expected + sample * o->size;
        if (i == run->count - 1 && memcmp(begin, expected, (size_t)o->size) != 0) {
            finish("output", 3);
        }
    }
}
"""

_MAIN = """
int main(void) {
    for (run_now = 0; run_now < (int)(sizeof runs / sizeof *runs); ++run_now) {
        const run_t *const run = &runs[run_now];
        for (sample_now = 0; sample_now < run->samples; ++sample_now) {
            for (edge_now = 0; edge_now < 2 * run->count; ++edge_now) {
                if (run->operands[edge_now / 2].data != 0) {
                    check(run, sample_now, edge_now);
                }
            }
            for (int i = 0; i < run->count; ++i) {
                if ((run->overwritten >> i & 1) != 0) {
                    edge_now = IN_PLACE + i;
                    check(run, sample_now, edge_now);
                }
            }
        }
    }
    finish("passed", 0);
    return 0;
}
"""

_LINKER = """
MEMORY { %s }
ENTRY(Reset_Handler)
SECTIONS {
    .text : { KEEP(*(.vectors)) *(.text .text.*) } > CODE
    .rodata : { *(.rodata .rodata.*) } > CONSTANTS
    .ARM.exidx : { *(.ARM.exidx*) } > CONSTANTS
    .bss (NOLOAD) : {
        *(.data .data.* .bss .bss.* COMMON)
        . = ALIGN(16);
        . += 16K;
        stack_top = .;
    } > DATA
}
"""
