"""Kernel calls of the GPU: dispatches of compute shaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from typing_extensions import override

from smelt.codegen.backends.vulkan.gpus import DEFAULT, Gpu
from smelt.codegen.lower.device import DeviceCall
from smelt.targets import Target

MAX_GROUPS = 65535
"""Workgroups per dimension that every Vulkan device can dispatch (maxComputeWorkGroupCount)."""

MAX_CONSTANTS = 32
"""Largest number of specialization constants of a module: the size of an array in
`smelt_vulkan.c`."""


def gpu_of(target: Target) -> Gpu:
    """Return the profile of the target's GPU, or the default profile if it has none."""
    return target.device if isinstance(target.device, Gpu) else DEFAULT


@dataclass(frozen=True)
class Block:
    """The outputs that one invocation of a convolution computes.

    Attributes:
        pixels: Pixels of a row.
        quads: Groups of four channels.
        across: Whether neighboring invocations compute neighboring channels; otherwise they
            compute neighboring pixels, and all invocations of a workgroup the same channels.
        local: Invocations per workgroup.
    """

    pixels: int
    quads: int
    across: bool
    local: int

    @property
    def text(self) -> str:
        """A description of the block for reports."""
        way = "channels" if self.across else "pixels"
        return f"{self.pixels} px x {4 * self.quads} channels, {self.local} along {way}"


@dataclass(frozen=True)
class ShaderCall(DeviceCall):
    """A node that is computed by one dispatch of a Vulkan compute shader.

    `template` is GLSL. Its variable `interface` declares specialization constants, push constants
    and an accessor for each operand: the operand's name in capitals, so that `INPUT(i)` is element
    `i` of operand `input`. Templates that render to equal text become one module. Calls of the same
    module with equal `constants` and `local` also share a pipeline.

    Attributes:
        views: GLSL type of the elements of each operand, by its name: `int`, `ivec4`, `float`,
            `vec4`, ….
        constants: Specialization constants (int32) by name.
        numbers: Push constants (int32) by name. They contain what differs between layers that
            share a pipeline, because drivers take long to compile one.
        invocations: Number of invocations in x, y and z. Those in excess, which fill the last
            workgroup in x, must do nothing.
        local: Workgroup size in x, y and z; None if the kernel works with any size along x.
        variants: Values of the template's variable `variant`, one module each. `""` is the module
            for any device; the others are used instead on devices with the feature of that name.
        block: The outputs of one invocation of a convolution.
        candidates: All blocks that are possible, best first by the device's profile.
    """

    views: Mapping[str, str] = field(default_factory=dict[str, str])
    constants: Mapping[str, int] = field(default_factory=dict[str, int])
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    invocations: tuple[int, int, int] = (1, 1, 1)
    local: tuple[int, int, int] | None = None
    variants: tuple[str, ...] = ("",)
    block: Block | None = None
    candidates: tuple[Block, ...] = ()

    @property
    def workgroup(self) -> tuple[int, int, int]:
        """`local`, or a size that every device supports."""
        return self.local or (64, 1, 1)

    @property
    def groups(self) -> tuple[int, int, int]:
        """Workgroups to dispatch in x, y and z."""
        x, y, z = (-(-n // size) for n, size in zip(self.invocations, self.workgroup, strict=True))
        return x, y, z

    @override
    def on(self, target: Target) -> ShaderCall:
        return self if self.local else replace(self, local=(gpu_of(target).local, 1, 1))
