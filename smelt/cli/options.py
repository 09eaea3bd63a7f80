"""Options that several commands share.

A command takes a group of options as one parameter whose type is a dataclass. `grouped` turns each
field of the dataclass into an option on the command line.
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
from smelt.api.report import BuildLimits
from smelt.cli import list_options
from smelt.cli.quant_options import PANEL, QuantGroup, QuantizationKind
from smelt.codegen.accelerator import load_tuning
from smelt.codegen.lower.backend import backend
from smelt.errors import ConfigError
from smelt.frontend import InputOptions


class Optimization(StrEnum):
    """Goal that kernels and compiler flags are optimized for."""

    speed = "speed"
    size = "size"
    ram = "ram"


class InputLayout(StrEnum):
    """Memory layout of the images that an ONNX network takes."""

    model = "model"
    nhwc = "nhwc"


Model = Annotated[Path, typer.Argument(help="A .tflite, .onnx or .smelt file.", show_default=False)]
BoardOption = Annotated[
    str | None,
    typer.Option(
        "--board",
        help="Board to build for: a name from `smelt boards`, a .toml file, or `host` for this "
        "computer.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", help="Core to generate code for (`smelt targets`)."),
]
OptimizeOption = Annotated[Optimization, typer.Option("--optimize", help="Optimize for this goal.")]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Name of the network, a C identifier [default: the file's stem]."),
]
KeepInputsOption = Annotated[
    bool,
    typer.Option("--keep-inputs", help="Do not reuse the memory of the inputs during inference."),
]
StreamInputOption = Annotated[
    bool,
    typer.Option(
        "--stream-input",
        help="Never store the whole input: your program delivers its rows as it gets them.",
    ),
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", help="Python file with your own operators; Smelt executes it. Repeatable."
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="Where to run: host, qemu or a serial port [default: qemu if --board is given].",
    ),
]
DeviceOption = Annotated[
    int | None,
    typer.Option(
        "--device",
        min=0,
        help="With --target vulkan: number of the GPU (`vulkaninfo --summary`) [default: the first "
        "that is not a software renderer].",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonFileOption = Annotated[
    Path | None, typer.Option("--json", help="Write the report as JSON to this file.")
]
DimOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        help="Size of a dimension that the file leaves open, as `batch=1`, or its range, as "
        "`T=1..64`.",
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Shape of an input, as `image=1x3x96x96`."),
]
ValueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        help="Replace an input with a constant, as `rate=16000`, `axes=0,2` or `flag=true`.",
    ),
]
InputLayoutOption = Annotated[
    InputLayout,
    typer.Option(
        "--input-layout",
        help="Layout of the images that you pass in: that of the `model`, or `nhwc` (channels "
        "last, as from cameras).",
    ),
]
MaxRamOption = Annotated[
    str | None,
    typer.Option(
        "--max-ram",
        help="Bytes that arena and states may take, as 20000 or 32K: choose the fastest way that "
        "fits, a few rows at a time if need be.",
    ),
]
MaxArena = Annotated[
    int | None, typer.Option("--max-arena", min=0, help="Fail if the arena exceeds these bytes.")
]
MaxFlash = Annotated[
    int | None,
    typer.Option("--max-flash", min=0, help="Fail if the network's flash exceeds these bytes."),
]
MaxStack = Annotated[
    int | None,
    typer.Option("--max-stack", min=0, help="Fail if an inference may use more bytes of stack."),
]
MaxInstructions = Annotated[
    int | None,
    typer.Option(
        "--max-instructions", min=0, help="Fail if an inference executes more instructions."
    ),
]
BackendsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--backends",
        help="Backends in order of preference, as `cmsis_nn,dsp` [default: all backends of the "
        "target, the cheapest for each layer].",
    ),
]
PlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        help="Backend for a layer or for all that match, as `conv1=c` or `conv*=c`; with a "
        "form of a kernel, as `conv1=dsp:dsp_dot_3x2`.",
    ),
]
PlaceTensorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--place-tensor",
        help="Memory of the board for a tensor or for all that match, as `conv1=dtcm`, or for the "
        "weights of a layer, as `conv1:weights=itcm` [default: where an inference waits least].",
    ),
]
FallbackOption = Annotated[
    bool,
    typer.Option(
        "--fallback/--no-fallback",
        help="Use the last backend for layers that the preferred backends do not support. To run "
        "on computers without a GPU, see --cpu-fallback.",
    ),
]
CmsisNnOption = Annotated[
    Path | None,
    typer.Option(
        "--cmsis-nn",
        help="Folder of CMSIS-NN, for backend `cmsis_nn` [default: $CMSIS_NN_DIR].",
    ),
]
ExpandOption = Annotated[
    bool,
    typer.Option(
        "--expand-weights",
        help="Store larger weights where that is faster (Winograd's algorithm).",
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        help="With --target vulkan: profile of the GPU, which decides which layers run on the CPU "
        "and the sizes of blocks and workgroups [default: the board's, or `default`].",
    ),
]
CpuFallbackOption = Annotated[
    bool,
    typer.Option(
        "--cpu-fallback",
        help="With --target vulkan: also include the GPU's layers for the CPU, for computers "
        "without a GPU; their weights are stored twice.",
    ),
]
Float16Option = Annotated[
    bool,
    typer.Option(
        "--float16",
        help="With --target vulkan: store the GPU's tensors as float16; inputs and outputs stay "
        "float32.",
    ),
]
TuningOption = Annotated[
    Path | None,
    typer.Option("--tuning", help="File of measurements from `smelt tune`, instead of --gpu."),
]
DumpAfter = Annotated[
    str | None, typer.Option("--dump-after", help="Print the graph after this compiler pass.")
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
        help="Number of calibration samples to use, evenly spaced [default: all].",
        rich_help_panel=PANEL,
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Replace the files of an earlier build; keep all other files."),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress, notes or results.")
]


@dataclass(frozen=True)
class InputGroup:
    """Options for the inputs of a network, and its plugins."""

    dim: DimOption = None
    shape: ShapeOption = None
    value: ValueOption = None
    input_layout: InputLayoutOption = InputLayout.model
    plugin: PluginOption = None

    def plugin_files(self) -> tuple[Path, ...]:
        """Return the paths of the plugins."""
        return list_options.plugins(self.plugin or ())

    def options(self) -> InputOptions:
        """Return the options in parsed form. Raise a `ConfigError` if one cannot be parsed."""
        return InputOptions(
            list_options.dims(self.dim or ()),
            list_options.shapes(self.shape or ()),
            list_options.values(self.value or ()),
            self.input_layout.value,
        )


@dataclass(frozen=True)
class BuildGroup(InputGroup, QuantGroup):
    """Options for compiling a network."""

    board: BoardOption = None
    target: TargetOption = None
    optimize: OptimizeOption = Optimization.speed
    name: NameOption = None
    keep_inputs: KeepInputsOption = False
    stream_input: StreamInputOption = False
    max_ram: MaxRamOption = None
    backends: BackendsOption = None
    place: PlaceOption = None
    place_tensor: PlaceTensorOption = None
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
        """Load the plugins and return the options in parsed form."""
        kernels = plugin_kernels(load_plugins(self.plugin_files()))
        return Options(
            target=self.target,
            board=self.board,
            optimize=self.optimize.value,
            name=self.name,
            keep_inputs=self.keep_inputs,
            stream_input=self.stream_input,
            max_ram=None if self.max_ram is None else list_options.size("--max-ram", self.max_ram),
            kernels=kernels,
            inputs=self.options(),
            backends=list_options.words("--backends", self.backends) if self.backends else None,
            place=list_options.places(self.place or ()),
            place_tensor=list_options.tensors(self.place_tensor or ()),
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
            raise ConfigError(f"{given[0]} needs --quantize int8: add it")
        return None


@dataclass(frozen=True)
class LimitGroup:
    """Upper limits for the memory and instructions of a network."""

    max_arena: MaxArena = None
    max_flash: MaxFlash = None
    max_stack: MaxStack = None
    max_instructions: MaxInstructions = None

    def build_limits(self) -> BuildLimits:
        """Return the limits in the form that checks a report."""
        return BuildLimits(self.max_arena, self.max_flash, self.max_stack, self.max_instructions)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each field of its dataclass parameters as an option."""
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
    """Reject empty values: usually an unset shell variable."""
    for name, text in given.items():
        if text == "" or (isinstance(text, list) and "" in map(str, cast("list[object]", text))):
            option = name.strip("_").replace("_", "-")
            raise ConfigError(
                f"--{option} is empty: give a value or remove the option (is a shell variable "
                "unset?)"
            )


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _library(name: str, folder: Path) -> Path:
    """Return the folder of an external library. Raise a `ConfigError` if its header is missing."""
    library = backend(name).library
    if library is not None and not (folder / library.header_path).exists():
        raise ConfigError(
            f"{library.option} {folder}: {library.header_path} is missing; give the folder of "
            f"{library.title}"
        )
    return folder
