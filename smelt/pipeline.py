"""The pipeline: from a model file to a C project, on one screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from smelt import __version__, gpu_options
from smelt.arguments import (
    as_choice,
    as_flag,
    as_instance,
    as_items,
    as_path,
    as_table,
    as_text,
)
from smelt.boards import Board, Computer, computer_called
from smelt.boards import load as load_board
from smelt.codegen import arena
from smelt.codegen.devices import stays_on_cpu
from smelt.codegen.dispatches import program
from smelt.codegen.kernels.base import Kernel, Request, backend
from smelt.codegen.names import c_name
from smelt.codegen.network import Network, describe, network_hash
from smelt.codegen.partition import Partitioner, Place
from smelt.codegen.passes import run_passes
from smelt.codegen.passes.float16 import use_float16
from smelt.codegen.passes.legalize import legalize
from smelt.codegen.passes.removals import Removals
from smelt.codegen.project import Project, render_project
from smelt.codegen.rooms import rooms
from smelt.codegen.schedule import Schedule, require_weights_fit, schedule
from smelt.codegen.tuning import FILE as TUNING
from smelt.codegen.tuning import Tuning
from smelt.errors import ConfigError
from smelt.frontend import Imported, InputOptions
from smelt.frontend import load as load_model
from smelt.ir import Array, Graph
from smelt.ir.text import print_graph
from smelt.quantize import Settings, quantize_network
from smelt.report import build_report
from smelt.run import Rig, run
from smelt.samples import bind_samples, named_outputs
from smelt.targets import HOST, Optimize, Platform, Target, get, library, stand_in

Observer = Callable[[str, Graph], None]


@dataclass(frozen=True)
class Options:
    """What `build` and every command that builds can be told.

    Attributes:
        target: name of a target; the board's own, or `host`, where None.
        board: name of a board or path of a board file; no board where None. `host`: this computer
            in place of a board, for code of any target.
        optimize: what kernels and compiler flags favour.
        name: of the network, a C identifier; the file's stem where None.
        keep_inputs: whether an inference leaves its inputs as they were.
        kernels: kernels of plugins, by backend.
        inputs: what an ONNX file leaves open of its inputs.
        backends: those to use, in order of preference, the target's last one as fallback; where
            None, the target's own, of which the cheapest serves each layer.
        place: backends that must serve certain layers, by name or pattern (`conv*`); one form of a
            backend's kernels as `cortexm:dsp_dot_3x2`.
        fallback: whether the last backend may serve what those of higher preference do not.
        expand_weights: whether weights may be stored several times as large where that is faster.
        cmsis_nn: the folder of CMSIS-NN, for compiling what calls it; what the environment variable
            CMSIS_NN_DIR says where None.
        gpu: profile of the GPU that target `vulkan` computes on, by which layers are left to the
            CPU and blocks are chosen, the board's own where None; with `backends` all goes to the
            GPU that it serves.
        tuning: what was measured on the device, with the profile that it was measured by.
        cpu_fallback: whether the network can do without a GPU, if none is there when it starts.
        float16: whether what a GPU computes is stored as float16, and computed so where the device
            is fast at it; inputs and outputs stay float32.
        quantize: how a float network is quantized first; not at all where None.

    Raises:
        ConfigError: one is of another type.
    """

    target: str | None = None
    board: str | None = None
    optimize: Optimize = "speed"
    name: str | None = None
    keep_inputs: bool = False
    kernels: Mapping[str, tuple[Kernel, ...]] = field(default_factory=dict[str, tuple[Kernel, ...]])
    inputs: InputOptions = field(default_factory=InputOptions)
    backends: tuple[str, ...] | None = None
    place: Mapping[str, str] = field(default_factory=dict[str, str])
    fallback: bool = True
    expand_weights: bool = False
    cmsis_nn: Path | None = None
    gpu: str | None = None
    tuning: Tuning | None = None
    cpu_fallback: bool = False
    float16: bool = False
    quantize: Settings | None = None

    def __post_init__(self) -> None:
        for name in ("target", "board", "name", "gpu"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, as_text(given, name))
        as_choice(self.optimize, "optimize", Optimize)
        for name in ("keep_inputs", "fallback", "expand_weights", "cpu_fallback", "float16"):
            as_flag(getattr(self, name), name)
        as_table(self.place, "place", "names of backends by layer")
        as_instance(self.inputs, "inputs", InputOptions, "InputOptions")
        if self.backends is not None:
            as_items(self.backends, "backends", "a tuple of names of backends")
        if self.quantize is not None:
            as_instance(self.quantize, "quantize", Settings, "smelt.quantize.Settings(calibration)")


@dataclass(frozen=True)
class Artefact:
    """A compiled network: every stage of the pipeline, and the C project at its end.

    `notes` are what the user should know, one sentence each: of the import, and of options.
    """

    imported: Imported
    graph: Graph
    schedule: Schedule
    plan: arena.Plan
    network: Network
    project: Project
    platform: Platform
    board: Board | None
    options: Options
    notes: tuple[str, ...]

    @property
    def report(self) -> Mapping[str, object]:
        """What `report.json` says; fields that only an ELF or a run can tell are None."""
        return self.project.report

    def write(self, directory: str | Path, *, force: bool = False) -> None:
        """Write the C project; see `Project.write`."""
        self.project.write(as_path(directory, "directory"), force=force)

    def run(
        self, inputs: Mapping[str, Array], *, on: str | None = None, dequantize: bool = False
    ) -> dict[str, Array]:
        """Build in a temporary folder, run, return `output_0`, `output_1`, ….

        Args:
            inputs: arrays by input name or as `input_0`, …; one more leading axis means that many
                samples, on the outputs too. Float arrays for integer inputs are quantized.
            on: `host`, `qemu`, `board` (its port on USB) or a serial port; QEMU by default where
                there is a board.
            dequantize: return real numbers.

        Raises:
            ConfigError: the inputs do not fit.
            ToolError: compiler or simulator is missing or failed.
        """
        if on is not None:
            on = as_text(on, "on", "'host', 'qemu', 'board' or a serial port")
        samples, batched = bind_samples(self.graph, inputs)
        outputs = run(self, samples, Rig(on)).outputs
        return named_outputs(self.graph, outputs, batched=batched, real=dequantize)

    @property
    def on(self) -> str:
        """Where the code runs by default: `host`, or `qemu` with a board."""
        return "host" if self.board is None else "qemu"


def compile_model(
    model: str | Path | bytes | Imported,
    options: Options | None = None,
    observe: Observer | None = None,
) -> Artefact:
    """Compile a model file into a C project.

    Args:
        model: path of the file, its bytes, or a network that is already imported.
        options: see `Options`.
        observe: called with each pass's name and result.

    Raises:
        ModelError: the file is broken.
        UnsupportedError: an operator is not served.
        DoesNotFit: the board has too little memory.
        ConfigError: an option is wrong.
        QuantizationError: the calibration data is unusable.
    """
    options = options or Options()
    here = options.board == HOST.name
    named = None if options.board is None or here else options.board
    computer = None if named is None else computer_called(named)
    board = None if named is None or computer is not None else load_board(named)
    platform = (
        stand_in(get(options.target or "host"))
        if here
        else _platform(board or computer, options.target)
    )
    gpu_options.check(options, platform.target)
    platform = gpu_options.beside_gpu(platform, options, computer)
    # A network is quantized, and then run, one sample at a time.
    inputs = replace(options.inputs, batch=1) if options.quantize else options.inputs
    imported = model if isinstance(model, Imported) else load_model(model, options.name, inputs)
    if options.quantize is not None:
        imported = quantize_network(imported, options.quantize).imported
    title = imported.graph.name if options.name is None else options.name
    name = c_name(title)
    removals = Removals(imported.graph, observe, platform.target.granularity)
    partitioner = _partitioner(platform.target, options)
    graph = run_passes(imported.graph, observe=removals, granularity=platform.target.granularity)
    graph, legalized = legalize(graph, partitioner)
    partitioner = partitioner.within(rooms(graph, keep_inputs=options.keep_inputs))
    costs = gpu_options.costs(options, platform.target)
    legal = graph
    if platform.target.gpu:
        stays = stays_on_cpu(graph, partitioner, costs, float16=options.float16)
        partitioner = partitioner.beside_gpu(stays)
        if options.float16:
            graph = use_float16(graph, partitioner)
            if observe is not None:
                observe(use_float16.__name__, graph)
    partitioner.require_layers(graph, legal)
    scheduled = schedule(
        graph,
        platform,
        partitioner,
        prefix=name,
        keep_inputs=options.keep_inputs,
        spare=partitioner.on_cpu() if options.cpu_fallback else None,
    )
    if options.tuning is not None:
        options.tuning.require_layers((step.node, step.call) for step in scheduled.calls)
    plan = arena.plan(scheduled.problem)
    arena.validate(scheduled.problem, plan)
    arena.require_fit(scheduled.problem, plan)
    require_weights_fit(scheduled, platform)
    hash_ = network_hash(*_identity(graph, options, platform))
    gpu = program(scheduled, plan)
    network = describe(scheduled, plan, gpu, title, hash_, keep_inputs=options.keep_inputs)
    notes = (*imported.notes, *gpu_options.notes(options, platform.target, scheduled))
    report = build_report(
        imported,
        removals,
        legalized,
        scheduled,
        plan,
        network,
        platform,
        board or computer,
        options.optimize,
        costs,
        notes,
    )
    project = render_project(network, scheduled, platform, options.optimize, report)
    if options.tuning is not None:
        project = replace(project, files={**project.files, TUNING: options.tuning.text})
    return Artefact(
        imported, graph, scheduled, plan, network, project, platform, board, options, notes
    )


def _platform(board: Board | Computer | None, target: str | None) -> Platform:
    if board is not None:
        return board.platform(target)
    return library(get(target or "host"))


def _partitioner(target: Target, options: Options) -> Partitioner:
    """Chooses among the backends that the options leave."""
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
        blocks={} if options.tuning is None else options.tuning.blocks,
    )
    return Partitioner(groups, request, places)


def _identity(graph: Graph, options: Options, platform: Platform) -> Sequence[str | bytes]:
    """Everything that the generated code depends on."""
    text = print_graph(graph, {})
    return (
        __version__,
        text,
        platform.name,
        platform.target.name,
        options.optimize,
        str(options.keep_inputs),
        str((options.backends, sorted(options.place.items()), options.fallback)),
        str(options.expand_weights),
        *gpu_options.identity(options, platform.target),
    )
