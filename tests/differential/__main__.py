"""`python -m tests.differential`: compare random networks in many builds with other engines."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.differential.builds import BUILDS, OPTIMIZES, Build, available
from tests.differential.campaign import Tally, run_batch, settings_of, shrunk, summary
from tests.differential.kinds import generate
from tests.differential.recipe import CHANNELS, KINDS, Kind, Recipe

BATCH = 12
"""Networks in one program."""


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--networks", type=int, default=60, help="how many, over all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="all kinds by default")
    parser.add_argument("--builds", default=",".join(BUILDS), help="names, joined by commas")
    parser.add_argument("--optimize", choices=OPTIMIZES, help="in turn, by default")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", type=_numbers, help="networks of these indices")
    parser.add_argument("--without", type=_numbers, default=[], help="steps to leave out")
    parser.add_argument("--channels", type=int, default=CHANNELS, help="most channels of a layer")
    parser.add_argument("--keep", type=Path, help="a folder for the model files of --only")
    parser.add_argument("--no-shrink", action="store_true", help="report findings as they are")
    parser.add_argument("--report", type=Path, help="a JSON file for the figures so far")
    arguments = parser.parse_args(words)
    arguments.builds = arguments.builds.split(",")
    if unknown := {*arguments.builds} - BUILDS.keys():
        parser.error(f"no build is called {', '.join(unknown)}; there are {', '.join(BUILDS)}")
    return arguments


def _recipes(arguments: argparse.Namespace) -> list[Recipe]:
    kinds: Sequence[Kind] = arguments.kind or KINDS
    without = frozenset(arguments.without)
    numbers: list[tuple[Kind, int]]
    if arguments.only is not None:
        numbers = [(kind, i) for kind in kinds for i in arguments.only]
    else:
        numbers = [(kinds[i % len(kinds)], i // len(kinds)) for i in range(arguments.networks)]
    return [Recipe(k, arguments.seed, i, without, arguments.channels) for k, i in numbers]


def _batches(
    recipes: Sequence[Recipe], builds: Sequence[Build], arguments: argparse.Namespace
) -> Iterator[tuple[Sequence[Recipe], list[tuple[Build, str]]]]:
    for number, start in enumerate(range(0, len(recipes), BATCH)):
        if arguments.only is not None:
            optimizes = [arguments.optimize] if arguments.optimize else OPTIMIZES
            settings = [(b, o) for o in optimizes for b in builds]
        else:
            settings = settings_of(number, builds)
            if arguments.optimize:
                settings = [(b, arguments.optimize) for b, _ in settings]
        yield recipes[start : start + BATCH], settings


def main(words: Sequence[str] | None = None) -> int:
    """Run a campaign; return 1 if anything was found."""
    arguments = _arguments(words)
    builds, reasons = available(arguments.builds)
    for reason in reasons:
        print(f"left out: {reason}", flush=True)
    recipes = _recipes(arguments)
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        for network in map(generate, recipes):
            path = arguments.keep / f"{network.recipe.name}{network.suffix}"
            path.write_bytes(network.data)
    batches = list(_batches(recipes, builds, arguments))
    tally, start = Tally(), time.monotonic()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(run_batch, *zip(*batches, strict=True)):
            _show(result, not arguments.no_shrink)
            tally += result
            done = sum(tally.networks.values())
            print(f"{done} networks, {time.monotonic() - start:.0f} s", flush=True)
            if arguments.report is not None:
                arguments.report.write_text(json.dumps(summary(tally), indent=2) + "\n")
    for reason, count in tally.refused.most_common():
        print(f"refused: {reason} ({count} times)")
    print(json.dumps(summary(tally), indent=2))
    return 1 if tally.findings else 0


def _show(result: Tally, shrink: bool) -> None:
    """Print each network's first finding, shrunk, and the other builds in which it fails."""
    by_recipe = {finding.recipe: finding for finding in reversed(result.findings)}
    for recipe, finding in by_recipe.items():
        others = [f"{f.build} {f.optimize}" for f in result.findings if f.recipe == recipe]
        print(f"FOUND {', '.join(finding.operators)}\n  in {', '.join(others)}")
        print(f"  {finding.what}\n  {finding.command}", flush=True)
        if shrink:
            small = shrunk(finding, BUILDS.get(finding.build))
            print(f"  shrunk to {', '.join(small.operators)}: {small.what}\n  {small.command}")


if __name__ == "__main__":
    sys.exit(main())
