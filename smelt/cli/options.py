"""The options that several commands share.

A command takes a group of options as one parameter whose type is a dataclass; `grouped` spreads
the dataclass's fields over the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer

from smelt.api.options import Options
from smelt.api.plugins import kernels as plugin_kernels
from smelt.api.plugins import load_plugins
from smelt.api.quantize import Settings
from smelt.api.report import Gates
from smelt.cli import list_options
from smelt.cli.quant_options import PANEL, QuantGroup, QuantizationKind
from smelt.codegen.accelerator import load_tuning
from smelt.codegen.lower.backend import backend
from smelt.errors import ConfigError
from smelt.frontend import InputOptions


class Optimization(StrEnum):
    """What kernels and compiler flags favour."""

    speed = "speed"
    size = "size"
    ram = "ram"


class InputLayout(StrEnum):
    """How images are given to an ONNX network."""

    model = "model"
    nhwc = "nhwc"


Model = Annotated[Path, typer.Argument(help="A .tflite, .onnx or .smelt file.", show_default=False)]
BoardOption = Annotated[
    str | None,
    typer.Option(
        "--board",
        help="Board to build for (`smelt boards`), or a .toml file; "
        "`host`: this computer, for code of any --target.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", help="Target to generate code for (`smelt targets`)."),
]
OptimizeOption = Annotated[Optimization, typer.Option("--optimize", help="What to favour.")]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Name of the network, a C identifier [default: file's stem]."),
]
KeepInputsOption = Annotated[
    bool, typer.Option("--keep-inputs", help="An inference leaves its inputs unchanged.")
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="Python file with operators of your own, which is executed."),
]
OnOption = Annotated[
    str | None,
    typer.Option("--on", help="host, qemu or a serial port [default: qemu with --board]."),
]
DeviceOption = Annotated[
    int | None,
    typer.Option(
        "--device",
        min=0,
        help="Number of the GPU, for --target vulkan (`vulkaninfo --summary`) [default: the first "
        "that is not the CPU itself].",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonFileOption = Annotated[
    Path | None, typer.Option("--json", help="Write the completed report here.")
]
DimOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        help="Size of an open dimension, as `batch=1`, or its least and greatest, as `T=1..64`.",
    ),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="Shape of an input, as `image=1x3x96x96`.")
]
ValueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--value", help="Make an input a constant, as `rate=16000`, `axes=0,2` or `flag=true`."
    ),
]
InputLayoutOption = Annotated[
    InputLayout, typer.Option("--input-layout", help="nhwc: images come channels last (cameras).")
]
MaxArena = Annotated[
    int | None, typer.Option("--max-arena", min=0, help="Fail if the arena takes more bytes.")
]
MaxFlash = Annotated[
    int | None, typer.Option("--max-flash", min=0, help="Fail if the network takes more flash.")
]
MaxStack = Annotated[
    int | None, typer.Option("--max-stack", min=0, help="Fail if an inference takes more stack.")
]
MaxInstructions = Annotated[
    int | None, typer.Option("--max-instructions", min=0, help="Fail if an inference takes more.")
]
BackendsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--backends",
        help="Backends in order of preference, as `cmsis_nn,dsp` or one an option [default: "
        "the target's own, the cheapest for each layer].",
    ),
]
PlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        help="Backend that must serve a layer, as `conv1=c`, `conv*=c` "
        "or, for one form of kernel, `conv1=dsp:dsp_dot_3x2`.",
    ),
]
FallbackOption = Annotated[
    bool,
    typer.Option(
        "--fallback/--no-fallback",
        help="Whether the last backend may serve what the preferred ones do not; for programs "
        "that find no GPU: --cpu-fallback.",
    ),
]
CmsisNnOption = Annotated[
    Path | None,
    typer.Option(
        "--cmsis-nn",
        help="Folder of CMSIS-NN, for backend `cmsis_nn` [default: CMSIS_NN_DIR].",
    ),
]
ExpandOption = Annotated[
    bool,
    typer.Option(
        "--expand-weights",
        help="Store weights several times as large where that is faster (Winograd's algorithm).",
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        help="Profile of the GPU of target `vulkan`, by which small layers are left to the CPU, "
        "and blocks and workgroups chosen [default: the board's, or `default`].",
    ),
]
CpuFallbackOption = Annotated[
    bool,
    typer.Option(
        "--cpu-fallback",
        help="With --target vulkan: also write the GPU's layers for the CPU, which computes them "
        "where the program finds no GPU; their weights are stored twice.",
    ),
]
Float16Option = Annotated[
    bool,
    typer.Option(
        "--float16",
        help="With --target vulkan: store what the GPU computes as float16; inputs and outputs "
        "stay float32.",
    ),
]
TuningOption = Annotated[
    Path | None,
    typer.Option("--tuning", help="What `smelt tune` measured on the device, instead of --gpu."),
]
DumpAfter = Annotated[
    str | None, typer.Option("--dump-after", help="Print the graph after this pass.")
]
QuantizeOption = Annotated[
    QuantizationKind | None,
    typer.Option("--quantize", help="Quantize a float network first.", rich_help_panel=PANEL),
]
CalibrationSamplesOption = Annotated[
    int | None,
    typer.Option(
        "--calibration-samples",
        min=1,
        help="How many are used, spread evenly [default: all].",
        rich_help_panel=PANEL,
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force", help="Replace the files of an earlier build in the folder, and keep all others."
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is asked for.")]


@dataclass(frozen=True)
class InputGroup:
    """What is said of a network's inputs, and the plugins that its file needs."""

    dim: DimOption = None
    shape: ShapeOption = None
    value: ValueOption = None
    input_layout: InputLayoutOption = InputLayout.model
    plugin: PluginOption = None

    def plugin_files(self) -> tuple[Path, ...]:
        """The files that are imported."""
        return list_options.plugins(self.plugin or ())

    def options(self) -> InputOptions:
        """The same, read; `ConfigError` for a text of another form."""
        return InputOptions(
            list_options.dims(self.dim or ()),
            list_options.shapes(self.shape or ()),
            list_options.values(self.value or ()),
            self.input_layout.value,
        )


@dataclass(frozen=True)
class BuildGroup(InputGroup, QuantGroup):
    """What a network is compiled with."""

    board: BoardOption = None
    target: TargetOption = None
    optimize: OptimizeOption = Optimization.speed
    name: NameOption = None
    keep_inputs: KeepInputsOption = False
    backends: BackendsOption = None
    place: PlaceOption = None
    fallback: FallbackOption = True
    expand_weights: ExpandOption = False
    gpu: GpuOption = None
    tuning: TuningOption = None
    cpu_fallback: CpuFallbackOption = False
    float16: Float16Option = False
    cmsis_nn: CmsisNnOption = None
    dump_after: DumpAfter = None
    quantize: QuantizeOption = None
    calibration_samples: CalibrationSamplesOption = None

    def build_options(self) -> Options:
        """The pipeline's options; plugins are loaded."""
        kernels = plugin_kernels(load_plugins(self.plugin_files()))
        return Options(
            target=self.target,
            board=self.board,
            optimize=self.optimize.value,
            name=self.name,
            keep_inputs=self.keep_inputs,
            kernels=kernels,
            inputs=self.options(),
            backends=list_options.words("--backends", self.backends) if self.backends else None,
            place=list_options.places(self.place or ()),
            fallback=self.fallback,
            expand_weights=self.expand_weights,
            gpu=self.gpu,
            tuning=None if self.tuning is None else load_tuning(self.tuning),
            cpu_fallback=self.cpu_fallback,
            float16=self.float16,
            cmsis_nn=None if self.cmsis_nn is None else _library("cmsis_nn", self.cmsis_nn),
            quantize=self._quantization(),
        )

    def _quantization(self) -> Settings | None:
        if self.quantize is not None:
            return self.settings(self.calibration_samples)
        given = self.given()
        if self.calibration_samples is not None:
            given.append("--calibration-samples")
        if given:
            raise ConfigError(f"{given[0]} needs --quantize int8")
        return None


@dataclass(frozen=True)
class LimitGroup:
    """What a network may take at most."""

    max_arena: MaxArena = None
    max_flash: MaxFlash = None
    max_stack: MaxStack = None
    max_instructions: MaxInstructions = None

    def gates(self) -> Gates:
        """The limits as a report is checked against them."""
        return Gates(self.max_arena, self.max_flash, self.max_stack, self.max_instructions)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass parameters as options of its own."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if not is_dataclass(hint):
            parameters.append(parameter.replace(annotation=hint, kind=_KEYWORD))
            continue
        groups[parameter.name] = hint
        types = get_type_hints(hint, include_extras=True)
        parameters += [
            inspect.Parameter(f.name, _KEYWORD, default=f.default, annotation=types[f.name])
            for f in fields(hint)
        ]

    @wraps(command)
    def spread(**given: Any) -> None:
        _refuse_empty(given)
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        command(**given)

    spread.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    spread.__annotations__ = {p.name: p.annotation for p in parameters}
    return spread


def _refuse_empty(given: Mapping[str, Any]) -> None:
    """An option without a text is no option left out: what would be done instead was not meant."""
    for name, text in given.items():
        if text == "" or (isinstance(text, list) and "" in map(str, cast("list[object]", text))):
            option = name.strip("_").replace("_", "-")
            raise ConfigError(
                f"--{option} is given, and empty: give a text, or leave it out (is a variable of "
                "the shell not set?)"
            )


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _library(name: str, folder: Path) -> Path:
    """The folder of the external library of that name."""
    library = backend(name).library
    if library is not None and not (folder / library.header_path).exists():
        raise ConfigError(
            f"{library.option} {folder}: it has no {library.header_path}; "
            f"give {library.title}'s folder"
        )
    return folder
