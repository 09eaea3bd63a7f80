"""What the GPU's kernels answer with: a dispatch of a compute shader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from typing_extensions import override

from smelt.codegen.backends.vulkan.gpus import DEFAULT, Gpu
from smelt.codegen.lower.device import DeviceCall
from smelt.targets import Target

MAX_GROUPS = 65535
"""Workgroups that every device of Vulkan can dispatch in one direction."""


def gpu_of(target: Target) -> Gpu:
    """The profile of a target's GPU."""
    return target.device if isinstance(target.device, Gpu) else DEFAULT


@dataclass(frozen=True)
class Block:
    """Pixels of a row, and quads of channels, of an invocation of a shader.

    `across`: invocations are numbered with the channels first; else those of a workgroup have the
    same channels. `local` is how many they are.
    """

    pixels: int
    quads: int
    across: bool
    local: int

    @property
    def text(self) -> str:
        """The block in words."""
        way = "channels" if self.across else "pixels"
        return f"{self.pixels} px x {4 * self.quads} channels, {self.local} along {way}"


@dataclass(frozen=True)
class ShaderCall(DeviceCall):
    """How one node is computed by one dispatch of a Vulkan compute shader.

    `template` is GLSL. It gets the variable `interface`: specialization constants, push constants
    and an accessor for each operand, named as the operand in capitals, so that `INPUT(i)` is its
    element `i`. Templates that render to equal text are one module; calls with equal `constants`
    and `local` share a pipeline besides.

    Attributes:
        views: GLSL type of the elements that each operand is seen as, by its name: `int`, `ivec4`,
            `float`, `vec4`, ….
        constants: specialization constants (int32), by name.
        numbers: push constants (int32), by name: what differs between layers that share a pipeline,
            for drivers take long to compile one.
        invocations: how many the kernel needs in x, y and z; those that fill the last workgroup in
            x up must do nothing.
        local: size of a workgroup in x, y and z; None where any will do, along x.
        variants: values of the template's variable `variant`, for modules that are taken instead
            of the first, `""`, where the device has the feature of that name.
        block: what one invocation of a product computes.
        candidates: all blocks that it could have, the best by the device's profile first.
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
        """`local`, or a size that suits any device."""
        return self.local or (64, 1, 1)

    @property
    def groups(self) -> tuple[int, int, int]:
        """Workgroups to dispatch in x, y and z."""
        x, y, z = (-(-n // size) for n, size in zip(self.invocations, self.workgroup, strict=True))
        return x, y, z

    @override
    def on(self, target: Target) -> ShaderCall:
        return self if self.local else replace(self, local=(gpu_of(target).local, 1, 1))
