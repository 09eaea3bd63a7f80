"""Options of a build, for `build` and every command that builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smelt.api.quantize import Settings
from smelt.argument_checks import (
    as_choice,
    as_flag,
    as_instance,
    as_integer,
    as_items,
    as_table,
    as_text,
)
from smelt.codegen.lower.device import Measurements
from smelt.codegen.lower.kernel import Kernel
from smelt.errors import ConfigError
from smelt.frontend import InputOptions
from smelt.targets import Optimize


@dataclass(frozen=True)
class Options:
    """Options of a build.

    Attributes:
        target: name of the target; None selects the board's target, or `host` without a board.
        board: name of a board or path of a board file; None builds for no board. `host` is this
            computer, which can run the code of any target.
        optimize: goal for kernels and compiler flags.
        name: name of the network, a C identifier; None selects the file's stem.
        keep_inputs: whether inference leaves the inputs unchanged.
        stream_input: whether the caller delivers the input a few rows at a time, so that the whole
            input is never stored. The network must have one input, and begin with layers that can
            be computed from a few of its rows.
        max_ram: bytes that arena and states may take together; None allows as much as the board
            has. Kernels are chosen so that arena and states fit.
        place_tensor: memory of the board for certain tensors, by name or pattern, or for a layer's
            weights, as `LAYER:weights`.
        spread: whether tensors and weights may be in several of the board's memories.
        free_arena: bytes of the arena that another network in the same arena needs anyway.
            `optimize="ram"` does not try to make the arena smaller than that.
        kernels: kernels of plugins, by backend.
        inputs: shapes, sizes and values of inputs that the file leaves open.
        backends: backends in order of preference, with the target's last one as fallback; None
            selects all of the target's, and the cheapest for each layer.
        place: backend for certain layers, by name or pattern (`conv*`); a form of a kernel is
            written as `dsp:dsp_dot_3x2`.
        fallback: whether the last backend may run layers that the preferred ones do not support.
        expand_weights: whether weights may take several times their bytes where that is faster.
        cmsis_nn: folder of CMSIS-NN; None selects that of environment variable CMSIS_NN_DIR.
        gpu: profile of the target's accelerator, which decides which layers run on the CPU and how
            blocks are chosen; None selects the board's. If `backends` is set, the accelerator runs
            every layer that it supports.
        tuning: measurements on the device, and the profile that they were made with.
        cpu_fallback: whether the program can run on the CPU alone if it finds no accelerator.
        float16: whether tensors of the accelerator are stored as float16, and computed as float16
            where the device is fast at it. Inputs and outputs stay float32.
        quantize: how to quantize a float network first; None leaves the network as it is.

    Raises:
        ConfigError: a value has the wrong type.
    """

    target: str | None = None
    board: str | None = None
    optimize: Optimize = "speed"
    name: str | None = None
    keep_inputs: bool = False
    stream_input: bool = False
    max_ram: int | None = None
    place_tensor: Mapping[str, str] = field(default_factory=dict[str, str])
    spread: bool = True
    free_arena: int = 0
    kernels: Mapping[str, tuple[Kernel, ...]] = field(default_factory=dict[str, tuple[Kernel, ...]])
    inputs: InputOptions = field(default_factory=InputOptions)
    backends: tuple[str, ...] | None = None
    place: Mapping[str, str] = field(default_factory=dict[str, str])
    fallback: bool = True
    expand_weights: bool = False
    cmsis_nn: Path | None = None
    gpu: str | None = None
    tuning: Measurements | None = None
    cpu_fallback: bool = False
    float16: bool = False
    quantize: Settings | None = None

    def __post_init__(self) -> None:
        for name in ("target", "board", "name", "gpu"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, as_text(given, name))
        as_choice(self.optimize, "optimize", Optimize)
        for name in (
            "keep_inputs",
            "stream_input",
            "spread",
            "fallback",
            "expand_weights",
            "cpu_fallback",
            "float16",
        ):
            as_flag(getattr(self, name), name)
        if self.stream_input and self.keep_inputs:
            raise ConfigError("--stream-input never stores the input: remove --keep-inputs")
        if self.max_ram is not None:
            object.__setattr__(self, "max_ram", as_integer(self.max_ram, "max_ram"))
        as_table(self.place, "place", "names of backends by layer")
        as_table(self.place_tensor, "place_tensor", "names of memories by tensor")
        if self.place_tensor and not self.spread:
            raise ConfigError("--place-tensor is for one network: remove --share-arena")
        as_instance(self.inputs, "inputs", InputOptions, "InputOptions")
        if self.backends is not None:
            as_items(self.backends, "backends", "a tuple of names of backends")
        if self.quantize is not None:
            as_instance(
                self.quantize, "quantize", Settings, "smelt.api.quantize.Settings(calibration)"
            )

    @property
    def library_folders(self) -> Mapping[str, Path]:
        """Return the folders of the external libraries that are set, by backend."""
        return {} if self.cmsis_nn is None else {"cmsis_nn": self.cmsis_nn}
