"""What a build can be told of a device beside the CPU, and what that means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.boards import Computer
from smelt.codegen.accelerator import DeviceOptions, accelerator_of, devices_beside
from smelt.codegen.lower.device import DeviceCall
from smelt.codegen.schedule.schedule import Schedule
from smelt.errors import ConfigError
from smelt.ir import DType
from smelt.targets import Platform, Target

if TYPE_CHECKING:
    from smelt.api.options import Options


def check(options: Options, target: Target) -> None:
    """Refuse what cannot be together, or is for an accelerator where there is none.

    Raises:
        ConfigError: which option it is, and why not.
    """
    given = {
        "--gpu": options.gpu is not None,
        "--tuning": options.tuning is not None,
        "--cpu-fallback": options.cpu_fallback,
        "--float16": options.float16,
    }
    for name in (name for name, wanted in given.items() if wanted and not target.device):
        raise ConfigError(
            f"{name} is for a target with a {devices_beside()}; '{target.name}' has none"
        )
    measured = None if options.tuning is None else options.tuning.profile
    if options.gpu is not None and measured not in (None, options.gpu):
        raise ConfigError(
            f"--tuning was measured with the profile '{measured}', not with --gpu {options.gpu}: "
            "leave --gpu out, or measure with it"
        )
    if options.float16 and options.cpu_fallback:
        raise ConfigError(
            f"--float16 is for {devices_beside()}s: layers in C compute with float32, so that "
            "--cpu-fallback would compute something else; leave one of the two out"
        )


def beside_device(platform: Platform, options: Options, computer: Computer | None) -> Platform:
    """The platform with the device that is asked for, was measured, or is the board's.

    Raises:
        ConfigError: there is no such profile, or the board's is not the one that was measured with.
    """
    own = None if computer is None else computer.gpu
    measured = None if options.tuning is None else options.tuning.profile
    name = options.gpu or own or measured
    if measured not in (None, name):
        raise ConfigError(
            f"--tuning was measured with the profile '{measured}', and --board {options.board} has "
            f"'{own}': measure with `smelt tune --board {options.board}`, or give --gpu {measured} "
            "if that profile is meant"
        )
    accelerator = accelerator_of(platform.target)
    if accelerator is None or name is None:
        return platform
    return replace(platform, target=replace(platform.target, device=accelerator.profile(name)))


def for_device(options: Options, target: Target) -> DeviceOptions:
    """What the accelerator is told; where backends are named, all that they serve is theirs."""
    return DeviceOptions(target, options.tuning, options.float16, options.backends is not None)


def notes(options: Options, target: Target, scheduled: Schedule) -> tuple[str, ...]:
    """What the user should know: that the device has nothing, or that an option changes nothing."""
    if not target.device:
        return ()
    asked = {"--float16": options.float16, "--cpu-fallback": options.cpu_fallback}
    given = [name for name, wanted in asked.items() if wanted]
    if not any(isinstance(step.call, DeviceCall) for step in scheduled.calls):
        void = "".join(f", and {name} changes nothing" for name in given)
        why = why_on_cpu(options, target)
        return (
            f"no layer goes to the {target.device.noun}: the CPU computes everything{void}; {why}",
        )
    if options.float16 and not any(
        value.type.dtype is DType.FLOAT16 for value in scheduled.graph.values()
    ):
        return (
            f"--float16 changes nothing: the {target.device.noun} computes nothing in float32 that "
            "float16 can hold",
        )
    return ()


def why_on_cpu(options: Options, target: Target) -> str:
    """What tells why layers are not the device's, and what may give it more of them."""
    why, (first, *_) = "`smelt partition` says why", target.backends
    if options.backends is not None and first in options.backends:
        return why
    noun = "accelerator" if target.device is None else target.device.noun
    return f"{why}, --backends {','.join(target.backends)} gives the {noun} all that it serves"


def identity(options: Options, target: Target) -> Sequence[str]:
    """What generated code depends on where there is an accelerator."""
    if target.device is None:
        return ()
    weighed = target.device.name if options.tuning is None else options.tuning.text
    return (weighed, *(["cpu"] if options.cpu_fallback else []))
