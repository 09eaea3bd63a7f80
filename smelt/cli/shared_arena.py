"""Commands that take several networks: `--share-arena` and what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from smelt.api.compile import compile_model
from smelt.api.shared_arena import SharedArena, share_arena
from smelt.cli import list_options
from smelt.cli.options import BuildGroup
from smelt.cli.output import dumper
from smelt.errors import ConfigError

Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL...",
        help="A .tflite, .onnx or .smelt file; several with --share-arena.",
        show_default=False,
    ),
]
ShareArenaOption = Annotated[
    bool,
    typer.Option(
        "--share-arena",
        help="Build several networks into one project. They run one after the other in one arena, "
        "as large as the largest needs. --name A,B names them.",
    ),
]


def only(models: Sequence[Path]) -> Path:
    """Return the only model. Raise a `ConfigError` if there are several."""
    if len(models) > 1:
        raise ConfigError(
            f"{len(models)} models are given: add --share-arena to put them into one project with "
            "one arena, or give one at a time"
        )
    return models[0]


def refuse_for_several(**given: object) -> None:
    """Raise a `ConfigError` if an option that is for one network is given, as `html=path`."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"--{name} is for one network: it cannot be combined with --share-arena"
            )


def compile_shared(models: Sequence[Path], network: BuildGroup) -> SharedArena:
    """Compile all models with the same options, and let them share an arena.

    Raises:
        ConfigError: the number of names differs from that of models; see also `share_arena`.
    """
    options, names = replace(network.build_options(), spread=False), [None] * len(models)
    if network.name is not None:
        names = list(list_options.words("--name", [network.name]))
    if len(names) != len(models):
        raise ConfigError(
            f"--name {network.name}: give as many names as models ({len(models)}), as A,B"
        )
    dump = dumper(network.dump_after)
    return share_arena(
        [
            compile_model(model, replace(options, name=name), dump)
            for model, name in zip(models, names, strict=True)
        ]
    )
