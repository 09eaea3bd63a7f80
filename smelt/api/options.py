"""What `build` and every command that builds can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smelt.api.quantize import Settings
from smelt.argument_checks import as_choice, as_flag, as_instance, as_items, as_table, as_text
from smelt.codegen.lower.device import Measurements
from smelt.codegen.lower.kernel import Kernel
from smelt.frontend import InputOptions
from smelt.targets import Optimize


@dataclass(frozen=True)
class Options:
    """Options of a build, by the names that they have in Python.

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
            backend's kernels as `dsp:dsp_dot_3x2`.
        fallback: whether the last backend may serve what those of higher preference do not.
        expand_weights: whether weights may be stored several times as large where that is faster.
        cmsis_nn: the folder of CMSIS-NN, for compiling what calls it; what the environment variable
            CMSIS_NN_DIR says where None.
        gpu: profile of the accelerator that a target has, by which layers are left to the CPU and
            blocks are chosen, the board's own where None; with `backends` all goes to it that it
            serves.
        tuning: what was measured on the device, with the profile that it was measured by.
        cpu_fallback: whether the network can do without the accelerator, if none is there when it
            starts.
        float16: whether what an accelerator computes is stored as float16, and computed so where
            the device is fast at it; inputs and outputs stay float32.
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
        for name in ("keep_inputs", "fallback", "expand_weights", "cpu_fallback", "float16"):
            as_flag(getattr(self, name), name)
        as_table(self.place, "place", "names of backends by layer")
        as_instance(self.inputs, "inputs", InputOptions, "InputOptions")
        if self.backends is not None:
            as_items(self.backends, "backends", "a tuple of names of backends")
        if self.quantize is not None:
            as_instance(
                self.quantize, "quantize", Settings, "smelt.api.quantize.Settings(calibration)"
            )

    @property
    def library_folders(self) -> Mapping[str, Path]:
        """Folders of the external libraries that are given, by backend."""
        return {} if self.cmsis_nn is None else {"cmsis_nn": self.cmsis_nn}
