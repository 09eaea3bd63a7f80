"""The compiler pipeline: from a model file to a C project."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smelt.api import device_options
from smelt.api.artifact import Artifact, Stages
from smelt.api.options import Options
from smelt.api.quantize import quantize_network
from smelt.api.report import build_report
from smelt.argument_checks import as_text
from smelt.boards import Board, Computer, find_computer
from smelt.boards import load as load_board
from smelt.codegen import arena
from smelt.codegen.accelerator import accelerator_of
from smelt.codegen.emit.names import c_name
from smelt.codegen.emit.network import EmittedNetwork, NetworkFiles, describe, render_network
from smelt.codegen.emit.project import Project, render_project
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.device import TUNING, LayerCosts
from smelt.codegen.lower.kernel import Request
from smelt.codegen.partition.legalize import Legalized, legalize
from smelt.codegen.partition.partitioner import Partitioner, Place
from smelt.codegen.partition.scratch import last_reads, scratch_limits
from smelt.codegen.passes import run_passes
from smelt.codegen.passes.channels.removal_report import RemovalReport
from smelt.codegen.schedule.fitting import (
    Fitting,
    fastest_kernels,
    kernels_for_smallest_arena,
    kernels_that_fit,
)
from smelt.codegen.schedule.memories import Distribution, distribute
from smelt.codegen.schedule.replay import replay
from smelt.codegen.schedule.schedule import ARENA, Schedule, schedule
from smelt.codegen.segments.choose import (
    SegmentSearch,
    can_have_segments,
    has_streamable_input,
    streamed_input,
)
from smelt.codegen.segments.turns import Turns
from smelt.errors import ConfigError, UnsupportedError
from smelt.frontend import Imported
from smelt.frontend import load as load_model
from smelt.ir import Array, Graph, Node
from smelt.proof.rig import Rig
from smelt.proof.run import run
from smelt.samples import bind_samples, named_outputs
from smelt.targets import HOST, Platform, Target, get, host_platform, library_platform

Observer = Callable[[str, Graph], None]


class Compiled(Artifact):
    """Result of `compile_model`, with a method to run the network."""

    def run(
        self, inputs: Mapping[str, Array], *, on: str | None = None, dequantize: bool = False
    ) -> dict[str, Array]:
        """Build the network in a temporary folder, run it and return its outputs.

        Args:
            inputs: arrays by input name, or as `input_0`, …. An array with one more leading axis
                contains several samples, and the outputs then have that axis too. Float arrays
                for integer inputs are quantized.
            on: `host`, `qemu`, `board` (its serial port is auto-detected) or a serial port. The
                default is `qemu` if there is a board, and `host` otherwise.
            dequantize: convert integer outputs to real numbers.

        Returns:
            Arrays named `output_0`, `output_1`, ….

        Raises:
            ConfigError: the inputs do not match the network.
            ToolError: the compiler or simulator is missing or failed.
        """
        if on is not None:
            on = as_text(on, "on", "'host', 'qemu', 'board' or a serial port")
        samples, batched = bind_samples(self.graph, inputs)
        outputs = run(self, samples, Rig(on)).outputs
        return named_outputs(self.graph, outputs, batched=batched, real=dequantize)


def compile_model(
    model: str | Path | bytes | Imported,
    options: Options | None = None,
    observe: Observer | None = None,
) -> Compiled:
    """Compile a model file into a C project.

    Args:
        model: path of the file, its bytes, or an imported network.
        options: options of the build; see `Options`.
        observe: called with the name of each pass and the graph that it returns.

    Raises:
        ModelError: the file is damaged.
        UnsupportedError: an operator is not supported.
        DoesNotFit: the network needs more memory than the board has.
        ConfigError: an option is wrong.
        QuantizationError: the calibration data cannot be used.
    """
    options = options or Options()
    machine, platform = _machine(options)
    target = platform.target
    imported = _imported(model, options)
    title = imported.graph.name if options.name is None else options.name

    removals = RemovalReport(imported.graph, observe, target.granularity)
    graph = run_passes(imported.graph, observe=removals, context=removals.context)
    fitted = _fitted(graph, platform, title, options, observe)
    fitting = fitted.fitting
    stored = distribute(
        fitting.schedule,
        fitting.plan,
        platform,
        options.place_tensor,
        together=options.max_ram is not None or options.optimize == "ram",
        spread=options.spread,
    )
    scheduled, plan, platform = stored.schedule, stored.plan, stored.platform
    _require_fit(stored, fitting)
    if options.tuning is not None:
        options.tuning.require_layers((step.node, step.call) for step in scheduled.calls)

    files = render_network(_described(stored, title, options), scheduled)

    notes = (
        *imported.notes,
        *device_options.notes(options, target, scheduled),
        *fitting.notes(),
    )
    stages = Stages(
        options=options,
        machine=machine,
        platform=platform,
        imported=imported,
        removals=removals,
        legalized=fitted.legalized,
        graph=fitted.graph,
        costs=fitted.costs,
        schedule=scheduled,
        plan=plan,
        stored=stored,
        searched=fitting.searched,
        network=files.network,
        notes=notes,
    )
    return Compiled(**vars(stages), project=_project(stages, files))


def _machine(options: Options) -> tuple[Board | Computer | None, Platform]:
    """Return the requested board or computer, and the platform that code is generated for.

    Raises:
        ConfigError: there is no board of that name, or an option does not match it.
    """
    machine: Board | Computer | None = None
    if options.board == HOST.name:
        platform = host_platform(get(options.target or "host"))
    elif options.board is None:
        platform = library_platform(get(options.target or "host"))
    else:
        machine = find_computer(options.board) or load_board(options.board)
        platform = machine.platform(options.target)
    device_options.check(options, platform.target)
    computer = machine if isinstance(machine, Computer) else None
    return machine, device_options.with_device_profile(platform, options, computer)


def _imported(model: str | Path | bytes | Imported, options: Options) -> Imported:
    """Import the network, and quantize it if the options say so."""
    # Quantization runs the network one sample at a time.
    inputs = replace(options.inputs, batch=1) if options.quantize else options.inputs
    imported = model if isinstance(model, Imported) else load_model(model, options.name, inputs)
    if options.quantize is None:
        return imported
    return quantize_network(imported, options.quantize).imported


def _partitioner(target: Target, options: Options) -> Partitioner:
    """Return a partitioner for the backends that the options allow."""
    known = (*target.libraries, *target.backends)
    placed = {pattern: name.partition(":") for pattern, name in options.place.items()}
    for name in (*(options.backends or ()), *(name for name, _, _ in placed.values())):
        if name not in known:
            raise ConfigError(
                f"target '{target.name}' has no backend '{name}'; it has {', '.join(known)}"
            )
    table = {name: backend(name, options.kernels.get(name, ())) for name in known}
    *preferred, last = (table[name] for name in target.backends)
    fallback = (last,) if options.fallback else ()
    if options.backends is None:
        groups = [(*preferred, *fallback)]
    else:
        wanted = [table[name] for name in options.backends]
        groups = [(one,) for one in dict.fromkeys((*wanted, *fallback))]
    places = {pattern: Place(table[name], form) for pattern, (name, _, form) in placed.items()}
    request = Request(
        target,
        options.optimize,
        expand_weights=options.expand_weights,
        little_ram=options.optimize == "ram" or options.stream_input,
        tilings={} if options.tuning is None else options.tuning.blocks,
    )
    return Partitioner(groups, request, places)


def _with_memory(graph: Graph, partitioner: Partitioner, options: Options) -> Partitioner:
    """Return a partitioner that knows how much scratch nodes may take, and what they overwrite."""
    keep = options.keep_inputs
    partitioner = replace(partitioner, last_reads=last_reads(graph, keep_inputs=keep))

    def saved(node: Node) -> int:
        return partitioner.choose(node).taken.saved

    return replace(partitioner, scratch_limits=scratch_limits(graph, saved, keep_inputs=keep))


def _placed(
    graph: Graph, partitioner: Partitioner, options: Options, observe: Observer | None
) -> tuple[Graph, Partitioner, LayerCosts | None]:
    """Assign layers to the accelerator and rewrite the graph for it.

    Returns:
        The rewritten graph, the partitioner with the assignment, and the costs it is based on.

    Raises:
        ConfigError: `place` names a layer that does not exist.
    """
    legal, costs, target = graph, None, partitioner.request.target
    accelerator = accelerator_of(target)
    if accelerator is not None:
        wanted = device_options.for_device(options, target)
        costs = accelerator.costs(wanted)
        share = accelerator.share(graph, partitioner, wanted)
        partitioner = replace(partitioner, share=share)
        for rewrite in accelerator.passes(wanted):
            graph = rewrite(graph, partitioner)
            if observe is not None:
                observe(rewrite.__name__, graph)
    partitioner.require_layers(graph, legal)
    return graph, partitioner, costs


@dataclass(frozen=True)
class _Fitted:
    """A graph with its kernels and the plan of its buffers."""

    graph: Graph
    legalized: tuple[Legalized, ...]
    costs: LayerCosts | None
    fitting: Fitting


def _fitted(
    graph: Graph, platform: Platform, title: str, options: Options, observe: Observer | None
) -> _Fitted:
    """Choose the kernels and plan the memory; with `max_ram`, the fastest ones that fit."""
    partitioner = _partitioner(platform.target, options)

    def fitted(partitioner: Partitioner, *, search: bool) -> _Fitted:
        legal, legalized = legalize(graph, partitioner)
        with_memory = _with_memory(legal, partitioner, options)
        placed, chosen, costs = _placed(legal, with_memory, options, observe)
        fitting = _scheduled(placed, platform, chosen, title, options, search=search)
        return _Fitted(placed, legalized, costs, fitting)

    if options.max_ram is None or partitioner.request.little_ram:
        return fitted(partitioner, search=True)
    # Either may be faster: for little RAM, layers are not rewritten to matrix products, whose rows
    # cannot be computed a few at a time, but their kernels may take more code.
    whole = fitted(partitioner, search=False)
    found = fitted(partitioner.in_little_ram(), search=True)
    return found if found.fitting.better_than(whole.fitting) else whole


def _scheduled(
    graph: Graph,
    platform: Platform,
    partitioner: Partitioner,
    title: str,
    options: Options,
    *,
    search: bool,
) -> Fitting:
    """Return the steps of an inference and the plan of their buffers.

    Without `search`, these are the fastest kernels, whether they fit or not.
    """
    accelerator = accelerator_of(platform.target)

    def scheduled(partitioner: Partitioner, segments: Sequence[Turns]) -> Schedule:
        return schedule(
            graph,
            platform,
            partitioner,
            prefix=c_name(title),
            keep_inputs=options.keep_inputs,
            max_ram=options.max_ram,
            segments=segments,
            fallback=partitioner.on_cpu() if options.cpu_fallback else None,
            device=None if accelerator is None else accelerator.functions(),
        )

    if not search:
        return fastest_kernels(scheduled, partitioner)
    segments = None
    if accelerator is None and can_have_segments(graph):
        segments = SegmentSearch(
            graph,
            partitioner,
            keep_inputs=options.keep_inputs,
            streamed=streamed_input(graph) if options.stream_input else None,
        )
    elif options.stream_input:
        raise UnsupportedError(
            "--stream-input cannot be combined with an accelerator, control flow or sizes that are "
            "set at run time: build without it"
        )
    if options.optimize == "ram":
        return kernels_for_smallest_arena(scheduled, partitioner, segments, options.free_arena)
    frugal = options.optimize == "speed" and options.max_ram is None
    return kernels_that_fit(scheduled, partitioner, segments, frugal=frugal)


def _require_fit(stored: Distribution, fitting: Fitting) -> None:
    """Check the plan, and that buffers and constants fit into their memories.

    Raises:
        DoesNotFit: the board, or `--max-ram`, has too little memory.
    """
    scheduled, plan = stored.schedule, stored.plan
    arena.validate(scheduled.problem, plan)
    if scheduled.segments:
        replay(scheduled, plan)
    advice = " ".join(_advice(scheduled, plan, stored.platform, fitting))
    arena.require_fit(scheduled.problem, plan, advice)
    stored.require_constants_fit()


def _advice(
    scheduled: Schedule, plan: arena.Plan, platform: Platform, fitting: Fitting
) -> Iterator[str]:
    """Yield what the arena of a plan that does not fit costs, and what makes it smaller."""
    use = plan.use(ARENA)
    if fitting.slowdown >= 0.001:
        yield (
            f"In {use.bytes:,} bytes, an inference takes an estimated {fitting.slowdown:.1%} more "
            "cycles than with the fastest kernels."
        )
    graph, step = scheduled.graph, use.peak_step
    if scheduled.streamed is not None or accelerator_of(platform.target) is not None:
        return
    inputs = {scheduled.storage.get(value) for value in graph.inputs}
    live = {placed.name for placed in plan.live(ARENA, step) if placed.live_bytes(step)}
    if live.isdisjoint(inputs) or not has_streamable_input(graph):
        return
    size = sum(value.type.bytes for value in graph.inputs)
    yield (
        f"The input takes {size:,} bytes: with --stream-input, your program delivers it a few "
        "rows at a time, and it is never stored as a whole."
    )


def _described(stored: Distribution, title: str, options: Options) -> EmittedNetwork:
    """Return the network in the form that the templates print."""
    target = stored.platform.target
    accelerator = accelerator_of(target)
    device = None if accelerator is None else accelerator.program(stored.schedule, stored.plan)
    return describe(stored, device, title, target=target, keep_inputs=options.keep_inputs)


def _project(stages: Stages, files: NetworkFiles) -> Project:
    """Render the C project, with the tuning file if one was used, and firmware if for a board."""
    options, report = stages.options, build_report(stages)
    platform = stages.platform if stages.has_firmware else stages.platform.without_firmware()
    project = render_project([files], platform, options.optimize, report)
    if options.tuning is None:
        return project
    return replace(project, files={**project.files, TUNING: options.tuning.text})
