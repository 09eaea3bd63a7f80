"""Several compiled networks that run one after the other in one arena, in one C project."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smelt.api.compile import Compiled, compile_model
from smelt.api.report import Report, without_measurements
from smelt.argument_checks import as_instance, as_items, as_path
from smelt.codegen.emit.group import NetworkGroup
from smelt.codegen.emit.project import Project, render_project
from smelt.errors import ConfigError, DoesNotFit
from smelt.version import __version__


@dataclass(frozen=True)
class SharedArena:
    """Networks in one C project, which share an arena. Each has its own states.

    Attributes:
        networks: the networks, in the user's order; the `project` of each is the common one.
    """

    networks: tuple[Compiled, ...]

    @property
    def project(self) -> Project:
        """Return the C project."""
        return self.networks[0].project

    @property
    def report(self) -> Mapping[str, Any]:
        """Return the contents of `report.json`: totals, and in `networks` the network's reports."""
        return self.project.report

    def write(self, directory: str | Path, *, force: bool = False) -> None:
        """Write the C project to a folder; see `Project.write`."""
        self.project.write(as_path(directory, "directory"), force=force)


def share_arena(networks: Sequence[Compiled]) -> SharedArena:
    """Put compiled networks into one C project with one arena, as large as the largest needs.

    A network is compiled again in three cases. If its tensors or weights may be in several
    memories, they must be in one, like those of the other networks. With `max_ram`, it must leave
    room for the other networks' states within that limit. With `optimize="ram"`, it may use as much
    arena as the largest network needs anyway, to be faster.

    Raises:
        ConfigError: the networks do not fit together; the message says why.
        DoesNotFit: a network does not fit beside the states of the others.
    """
    wanted = "a sequence of results of smelt.compile"
    given = as_items(networks, "networks", wanted)
    networks = [as_instance(one, "networks", Compiled, wanted) for one in given]
    _check(networks)
    NetworkGroup(tuple(one.network for one in networks))  # refuse equal names first
    networks = _with_common_room(_beside_states([_in_one_memory(one) for one in networks]))
    first = networks[0]
    platform = first.platform if first.has_firmware else first.platform.without_firmware()
    files = [one.project.files_of(one.network) for one in networks]
    project = render_project(files, platform, first.options.optimize, _report(networks))
    return SharedArena(tuple(replace(one, project=project) for one in networks))


def _check(networks: Sequence[Compiled]) -> None:
    """Check that networks can share an arena in one project."""
    if len(networks) < 2:
        raise ConfigError(
            "sharing an arena needs at least two networks: give more, or omit --share-arena (in "
            "Python share_arena)"
        )
    properties: tuple[tuple[str, Callable[[Compiled], object]], ...] = (
        ("target", lambda one: one.platform.target.name),
        ("board", lambda one: one.platform.name if one.has_firmware else None),
        ("--optimize", lambda one: one.options.optimize),
        ("folder of CMSIS-NN", lambda one: one.options.cmsis_nn),
    )
    first = networks[0]
    for one in networks:
        if one.network.device is not None:
            raise ConfigError(
                f"network '{one.network.title}' runs on an accelerator, with an arena of its own "
                "that cannot be shared"
            )
        for name, value in properties:
            if value(one) != value(first):
                raise ConfigError(
                    f"networks that share an arena must have the same {name}, but "
                    f"'{first.network.title}' has {value(first) or 'none'} and "
                    f"'{one.network.title}' has {value(one) or 'none'}"
                )


def _in_one_memory(one: Compiled) -> Compiled:
    """Return a network with all tensors in one memory, and all weights in one."""
    return _again(one, spread=False) if one.options.spread and one.stored.has_choice else one


def _beside_states(networks: Sequence[Compiled]) -> Sequence[Compiled]:
    """Return the networks, each with an arena that fits into its limit beside all states."""
    states = sum(one.network.state_bytes for one in networks)
    return [_beside(one, states - one.network.state_bytes) for one in networks]


def _beside(one: Compiled, others: int) -> Compiled:
    """Return a network that fits into its limit beside `others` bytes of states."""
    limit, network = one.options.max_ram, one.network
    if limit is None or network.arena_bytes + network.state_bytes + others <= limit:
        return one
    try:
        return _again(one, max_ram=limit - others)
    except DoesNotFit as error:
        raise DoesNotFit(
            f"network '{network.title}', for which --max-ram {limit} leaves {limit - others:,} "
            f"bytes beside the states of the other networks: {error}",
            needed=error.needed,
            available=error.available,
            largest=error.largest,
        ) from error


def _with_common_room(networks: Sequence[Compiled]) -> Sequence[Compiled]:
    """Return the networks; those for the smallest arena may use that of the largest one."""
    room = max(one.network.arena_bytes for one in networks)
    return [
        _again(one, free_arena=room)
        if one.options.optimize == "ram" and one.network.arena_bytes < room
        else one
        for one in networks
    ]


def _again(one: Compiled, **changed: int) -> Compiled:
    """Compile a network again, with changed options; it is quantized already."""
    options = replace(one.options, quantize=None, **changed)
    again = compile_model(one.imported, options)
    return replace(again, options=replace(options, quantize=one.options.quantize))


def _report(networks: Sequence[Compiled]) -> Report:
    """Return the report of a project before it is compiled or run: totals and each network's."""
    group = NetworkGroup(tuple(one.network for one in networks))
    reports: list[Report] = [dict(one.report) for one in networks]
    first = reports[0]
    arenas = [report["arena"] for report in reports]
    largest = max(arenas, key=lambda arena: arena["bytes"])
    hash_ = group.members[0].hash
    macs = sum(report["network"]["macs"] for report in reports)
    return {
        "smelt": __version__,
        "network": {"name": group.title, "hash": hash_, "macs": macs},
        **{name: first[name] for name in ("target", "board", "measured_on", "optimize")},
        "arena": {
            "bytes": group.arena_bytes,
            "lower_bound": max(arena["lower_bound"] for arena in arenas),
            "proved_smallest": largest["proved_smallest"],
            "certificate": largest["certificate"],
        },
        "state": {"bytes": group.state_bytes},
        "weights": {"bytes": group.weights_bytes},
        **without_measurements(),
        "notes": [f"{n.network.title}: {note}" for n in networks for note in n.notes],
        "networks": reports,
    }
