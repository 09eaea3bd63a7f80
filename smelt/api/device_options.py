"""Options for an accelerator beside the CPU: checks, notes and effects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.boards import Computer
from smelt.codegen.accelerator import DeviceOptions, accelerator_nouns, accelerator_of
from smelt.codegen.lower.device import DeviceCall
from smelt.codegen.schedule.schedule import Schedule
from smelt.errors import ConfigError
from smelt.ir import DType
from smelt.targets import Platform, Target

if TYPE_CHECKING:
    from smelt.api.options import Options


def check(options: Options, target: Target) -> None:
    """Check that the options for an accelerator fit the target and each other.

    Raises:
        ConfigError: they do not; the message names the option.
    """
    given = {
        "--gpu": options.gpu is not None,
        "--tuning": options.tuning is not None,
        "--cpu-fallback": options.cpu_fallback,
        "--float16": options.float16,
    }
    for name in (name for name, wanted in given.items() if wanted and not target.device):
        raise ConfigError(
            f"{name} needs a target with a {accelerator_nouns()}; '{target.name}' has none"
        )
    measured = None if options.tuning is None else options.tuning.profile
    if options.gpu is not None and measured not in (None, options.gpu):
        raise ConfigError(
            f"--tuning was measured with profile '{measured}', not with --gpu {options.gpu}: "
            f"remove --gpu, or run `smelt tune` with --gpu {options.gpu}"
        )
    if options.float16 and options.cpu_fallback:
        raise ConfigError(
            "--float16 and --cpu-fallback exclude each other: the CPU computes in float32, so its "
            "results would differ from the accelerator's"
        )


def with_device_profile(
    platform: Platform, options: Options, computer: Computer | None
) -> Platform:
    """Return the platform with the accelerator's profile that the options or the board select.

    Raises:
        ConfigError: there is no such profile, or the tuning was measured with another one.
    """
    own = None if computer is None else computer.gpu
    measured = None if options.tuning is None else options.tuning.profile
    name = options.gpu or own or measured
    if measured not in (None, name):
        raise ConfigError(
            f"--tuning was measured with profile '{measured}', but --board {options.board} has "
            f"'{own}': measure with `smelt tune --board {options.board}`, or select the measured "
            f"profile with --gpu {measured}"
        )
    accelerator = accelerator_of(platform.target)
    if accelerator is None or name is None:
        return platform
    return replace(platform, target=replace(platform.target, device=accelerator.profile(name)))


def for_device(options: Options, target: Target) -> DeviceOptions:
    """Return the accelerator's options. Explicit `backends` give it every layer it supports."""
    return DeviceOptions(target, options.tuning, options.float16, options.backends is not None)


def notes(options: Options, target: Target, scheduled: Schedule) -> tuple[str, ...]:
    """Return notes if the accelerator computes no layer, or if an option has no effect."""
    if not target.device:
        return ()
    asked = {"--float16": options.float16, "--cpu-fallback": options.cpu_fallback}
    given = [name for name, wanted in asked.items() if wanted]
    if not any(isinstance(step.call, DeviceCall) for step in scheduled.calls):
        void = "".join(f", and {name} has no effect" for name in given)
        why = why_on_cpu(options, target)
        return (
            f"no layer runs on the {target.device.noun}: the CPU computes all layers{void}; {why}",
        )
    if options.float16 and not any(
        value.type.dtype is DType.FLOAT16 for value in scheduled.graph.values()
    ):
        return (
            f"--float16 has no effect: the {target.device.noun} computes no float32 tensor that "
            "float16 can store",
        )
    return ()


def why_on_cpu(options: Options, target: Target) -> str:
    """Return a hint on why layers run on the CPU, and how to move more to the accelerator."""
    why, (first, *_) = "`smelt partition` says why", target.backends
    if options.backends is not None and first in options.backends:
        return why
    noun = "accelerator" if target.device is None else target.device.noun
    return f"{why}, --backends {','.join(target.backends)} gives the {noun} all it supports"
