"""Instructions of each layer of an inference, counted in the simulator, and their cycles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.api.report import Measured, Report, complete
from smelt.boards import ElfInfo
from smelt.boards.disassembly import Code, disassemble, line_at, source_lines
from smelt.boards.instruction_counts import CountedRegion, Counter
from smelt.codegen.emit.network import call_lines
from smelt.codegen.schedule.steps import Call
from smelt.errors import ConfigError, ToolError
from smelt.files import temporary_folder
from smelt.proof.rig import built, connected
from smelt.proof.run import bound_of, device_inputs, set_sizes
from smelt.samples import Sample
from smelt.targets.cycles import WAIT_STATES_ASSUMED, Counts, cycles, unknown
from smelt.targets.instructions import Kind
from smelt.targets.timings import Core, core

if TYPE_CHECKING:
    from smelt.api.artifact import Artifact

AddressCounts = Mapping[int, Counts]


@dataclass(frozen=True)
class Profile:
    """Instructions that one inference executed, from the network's first to its last.

    Attributes:
        target: name of the target.
        clock_hz: clock frequency of the board in Hz.
        code: machine code of the firmware.
        steps: counts of each step, from its kernel's call to its return. Steps that only control
            others have none. None means that the compiler removed the call as unreachable, or
            merged it with another step's call, where it is counted.
        outside: counts of the code between kernels: operands, copies, loops and interrupts.
        measured: flash, and the measurements of the device's own timer.
    """

    target: str
    clock_hz: int
    code: Code
    steps: tuple[AddressCounts | None, ...]
    outside: AddressCounts
    measured: Measured

    @property
    def instructions(self) -> int:
        """Return the exact number of instructions of the inference."""
        return sum(map(executed, self._parts))

    @cached_property
    def core(self) -> Core:
        """Return the timings of the target's core. Raise a `ConfigError` if there are none."""
        return core(self.target)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the executed mnemonics without a timing; each counts as one cycle."""
        names = (unknown(self.code.instructions, part) for part in self._parts)
        return tuple(sorted({name for part in names for name in part}))

    def cycles(self, counts: AddressCounts, wait_states: int = 0) -> int:
        """Return the cycles of one step's counts, or of `outside`."""
        return cycles(self.core, self.code.instructions, counts, wait_states)

    def total_cycles(self, wait_states: int = 0) -> int:
        """Return the cycles of the inference."""
        return sum(self.cycles(part, wait_states) for part in self._parts)

    @property
    def _parts(self) -> Iterable[AddressCounts]:
        return (*(step for step in self.steps if step is not None), self.outside)


def executed(counts: AddressCounts) -> int:
    """Return the number of executed instructions."""
    return sum(found.executions for found in counts.values())


def profile_model(artifact: Artifact, sample: Sample) -> Profile:
    """Run one inference in the simulator and count each instruction by layer and address.

    The machine code is the same as in any other build. Debug information, which does not change
    the code, locates the calls of kernels.

    Args:
        artifact: network compiled for a board that QEMU simulates.
        sample: one array per input, of exactly the input's type.

    Raises:
        ConfigError: there is no board, or QEMU does not simulate it.
        ToolError: a compiler, the disassembler or the simulator is missing or failed, or QEMU was
            built without plugins.
        DeviceError: the device gives a wrong response.
    """
    if artifact.board is None:
        raise ConfigError(
            "a profile by layer needs the simulator: choose a --board (see `smelt boards`)"
        )
    if artifact.platform.firmware != "cortexm":
        raise ConfigError(
            f"a profile by layer needs a board with a Cortex-M, not '{artifact.platform.name}'; "
            "`smelt run` counts the instructions of a whole inference"
        )
    name = artifact.network.name
    with (
        temporary_folder() as folder,
        built(artifact, extra_cflags="-g1") as elf,
    ):
        code = disassemble(elf.path, artifact.platform.target)
        bound = bound_of(artifact, elf.path)
        calls = _calls(artifact, elf, code)
        parts = [(address, code.instructions[address].after) for address, _ in calls]
        start = code.function(f"{name}_invoke")
        region = CountedRegion(
            (code.low, code.high), _flash(artifact), start, _stop(code, start), parts
        )
        counter = Counter(region, Path(folder))
        with connected(elf, artifact, "qemu", counter.arguments) as device:
            set_sizes(device, artifact.graph, sample)
            _, invocation = device.run(device_inputs(artifact.graph, sample))
            outside, *found = counter.read()
    steps: list[dict[int, Counts] | None] = [
        None if isinstance(step, Call) else {} for step in artifact.schedule.steps
    ]
    for (_, index), counts in zip(calls, found, strict=True):
        own = steps[index]
        if own is None:
            own = steps[index] = {}
        _split(counts, code, own, outside)
    measured = Measured(
        elf.flash_network.total,
        elf.flash_elf,
        invocation.instructions,
        invocation.stack_bytes,
        bound,
    )
    return Profile(
        artifact.platform.target.name,
        artifact.board.clock_hz,
        code,
        tuple(steps),
        outside,
        measured,
    )


def profiled(
    report: Mapping[str, Any], profile: Profile, *, cycles: bool = False, wait_states: int = 0
) -> Report:
    """Return the report completed with `profile`, and with `instructions` for each layer.

    Args:
        report: report of the profiled artifact.
        profile: the counts.
        cycles: whether to estimate cycles and milliseconds too.
        wait_states: wait states of the flash.

    Raises:
        ConfigError: cycles are requested, but the target has no timings.
    """
    total = profile.instructions
    whole = profile.total_cycles(wait_states) if cycles else None

    def figures(counts: AddressCounts | None, macs: int) -> Report:
        count = None if counts is None else executed(counts)
        found: Report = {
            "instructions": count,
            "share": None if count is None else count / total,
            "instructions_per_mac": None if not macs or count is None else count / macs,
        }
        if whole is not None:
            taken = None if counts is None else profile.cycles(counts, wait_states)
            found["cycles"] = taken
            found["milliseconds"] = None if taken is None else 1e3 * taken / profile.clock_hz
        return found

    layers = [
        {**layer, **figures(counts, layer["macs"])}
        for layer, counts in zip(report["layers"], profile.steps, strict=True)
    ]
    summary: Report = {"instructions": total, "outside": figures(profile.outside, 0)}
    if whole is not None:
        summary |= {
            "cycles": whole,
            "milliseconds": 1e3 * whole / profile.clock_hz,
            "clock_hz": profile.clock_hz,
            "core": profile.core.name,
            "estimated_timings": profile.core.estimate,
            "wait_states": wait_states,
            "wait_states_assumed": WAIT_STATES_ASSUMED,
            "unknown_mnemonics": list(profile.unknown),
        }
    measured = replace(profile.measured, instructions=total)  # the timer counts whole ticks only
    return {**complete(report, measured), "layers": layers, "profile": summary}


def _calls(artifact: Artifact, elf: ElfInfo, code: Code) -> list[tuple[int, int]]:
    """Return the addresses of the kernels' calls, each with the index of its step."""
    name = artifact.network.name
    source = f"{name}.c"
    steps = call_lines(artifact.network)
    lines = source_lines(elf.path, source)
    # With a streamed input, `invoke` feeds rows to `advance`, which may be inlined.
    functions = {f"{name}_invoke", f"{name}_feed_rows", "advance"}
    found: list[tuple[int, int]] = []
    for instruction in code.instructions.values():
        # The compiler names parts that it splits off a function NAME.part.0 or NAME.cold.
        function = code.function_at(instruction.address).partition(".")[0]
        if instruction.kind not in (Kind.CALL, Kind.JUMP) or function not in functions:
            continue
        line = line_at(lines, instruction.address)
        if line in steps:
            found.append((instruction.address, steps[line]))
    if not found and artifact.schedule.calls:
        raise ToolError(f"no call of a kernel was found in the machine code of {name}")
    return found


def _stop(code: Code, start: int) -> int:
    """Return the address after the firmware's only call of the network."""
    calls = [i for i in code.instructions.values() if i.kind is Kind.CALL and i.target == start]
    if len(calls) != 1:
        raise ToolError(f"the firmware calls the network in {len(calls)} places, not in one")
    return calls[0].after


def _flash(artifact: Artifact) -> tuple[int, int] | None:
    memory = artifact.platform.memory_of("weights")
    return None if memory is None else (memory.origin, memory.origin + memory.size)


def _split(
    counts: AddressCounts, code: Code, own: dict[int, Counts], outside: dict[int, Counts]
) -> None:
    """Add a call's counts to its step's counts, but those of interrupt handlers to `outside`."""
    for address, found in counts.items():
        interrupt = code.function_at(address).endswith("_Handler")
        (outside if interrupt else own).setdefault(address, Counts()).add(found)
