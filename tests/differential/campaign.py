"""A run of the differential fuzzer: batches of networks, each batch in some builds.

Not every network goes through every build: a batch is compiled for the host by one of its
compilers, and for one Cortex-M core in one of its builds; compilers, cores and the values of
`--optimize` take turns. So every combination gets many networks, and a network costs little. Every
other network is compiled with `--keep-inputs`.
"""

from __future__ import annotations

import contextlib
import tempfile
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from smelt.api.compile import compile_model
from smelt.errors import GraphError, SmeltError
from smelt.frontend import Imported
from smelt.frontend import load as load_model
from smelt.targets import Optimize
from tests.differential.builds import OPTIMIZES, Build
from tests.differential.kinds import generate, truth_of
from tests.differential.onnx_builder import REFUSALS
from tests.differential.oracles import Truth, difference
from tests.differential.program import Compiled, Failure, Outputs, run_host
from tests.differential.recipe import Network, Recipe
from tests.support.graphs import Member, run_together

Setting = tuple[Build, Optimize]


@dataclass(frozen=True)
class Finding:
    """A network whose outputs are wrong in a build."""

    recipe: Recipe
    build: str
    optimize: Optimize
    what: str
    operators: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """Return a command that reproduces the finding."""
        where = f" --builds {self.build} --optimize {self.optimize}" if self.build else ""
        return self.recipe.command + where


@dataclass
class Tally:
    """Counts of what was run, and the findings."""

    networks: Counter[str] = field(default_factory=Counter[str])
    operators: Counter[str] = field(default_factory=Counter[str])
    builds: Counter[str] = field(default_factory=Counter[str])
    engines: Counter[str] = field(default_factory=Counter[str])
    elements: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    findings: list[Finding] = field(default_factory=list[Finding])

    def __iadd__(self, other: Tally) -> Tally:
        for name in ("networks", "operators", "builds", "engines", "refused"):
            getattr(self, name).update(getattr(other, name))
        self.elements += other.elements
        self.findings += other.findings
        return self


@dataclass(frozen=True)
class Subject:
    """A network with its right outputs."""

    network: Network
    imported: Imported
    truth: Truth

    @property
    def recipe(self) -> Recipe:
        return self.network.recipe


def settings_of(batch: int, builds: Sequence[Build]) -> list[Setting]:
    """Return the builds of a batch: one for the host, and one for a Cortex-M core."""
    cores = list(dict.fromkeys(b.core for b in builds if b.core != "host"))
    turns = [("host", batch)]
    if cores:
        turns.append((cores[batch % len(cores)], batch // len(cores)))
    settings = list[Setting]()
    for core, turn in turns:
        own = [b for b in builds if b.core == core]
        if own:
            optimize: Optimize = OPTIMIZES[turn // len(own) % 3]
            settings.append((own[turn % len(own)], optimize))
    return settings


def run_batch(recipes: Sequence[Recipe], settings: Sequence[Setting]) -> Tally:
    """Make the networks, compile them in each build, run them and compare."""
    tally = Tally()
    subjects = [s for recipe in recipes if (s := _subject(recipe, tally)) is not None]
    with tempfile.TemporaryDirectory() as folder:
        by_code: dict[tuple[str, bool, Optimize], list[Build]] = {}
        for build, optimize in settings:
            by_code.setdefault((build.core, build.simulated, optimize), []).append(build)
        for (core, simulated, optimize), builds in by_code.items():
            if simulated:
                _run_simulated(subjects, builds[0], optimize, tally)
                continue
            place = Path(folder) / f"{core}-{optimize}"
            compiled = _compile(subjects, builds[0], optimize, place, tally)
            for build in builds:
                kept = [c for _, c in compiled]
                results = run_host(kept, build, place / build.name)
                for subject, network in compiled:
                    _judge(subject, results[network.name], build, optimize, tally)
    return tally


def _subject(recipe: Recipe, tally: Tally) -> Subject | None:
    """Import a network and compute its right outputs; None if no engine gives them."""
    network = generate(recipe)
    try:
        imported = load_model(network.data, recipe.name)
    except SmeltError as error:
        tally.refused[f"{recipe.command}: {error}"] += 1
        return None
    except Exception:  # noqa: BLE001 - any error is a finding
        tally.findings.append(_crash(network, "", "speed", "the import"))
        return None
    truth: Truth | str | None = None
    with contextlib.suppress(*REFUSALS):  # the whole network is refused, but none of its operators
        truth = truth_of(network, imported)
    if truth is None:
        tally.refused[f"{recipe.command}: there is no engine to compare with"] += 1
        return None
    if isinstance(truth, str):
        tally.findings.append(Finding(recipe, "", "speed", truth, network.operators))
        return None
    tally.networks[recipe.kind] += 1
    tally.engines[truth.engine] += 1
    tally.operators.update(set(network.operators))
    return Subject(network, imported, truth)


def _crash(network: Network, build: str, optimize: Optimize, where: str) -> Finding:
    last = "".join(traceback.format_exc().splitlines(keepends=True)[-7:])
    return Finding(network.recipe, build, optimize, f"{where} raises\n{last}", network.operators)


def _compile(
    subjects: Sequence[Subject], build: Build, optimize: Optimize, folder: Path, tally: Tally
) -> list[tuple[Subject, Compiled]]:
    compiled = list[tuple[Subject, Compiled]]()
    for subject in subjects:
        options = build.options(optimize, subject.recipe.name)
        options = replace(options, keep_inputs=subject.recipe.index % 2 == 1)
        try:
            artifact = compile_model(subject.imported, options)
        except GraphError:
            tally.findings.append(_crash(subject.network, build.name, optimize, "compile_model"))
        except SmeltError as error:
            tally.refused[f"{subject.recipe.command}: {error}"] += 1
        except Exception:  # noqa: BLE001 - any error is a finding
            tally.findings.append(_crash(subject.network, build.name, optimize, "compile_model"))
        else:
            made = Compiled.of(artifact, subject.network.samples, folder)
            compiled.append((subject, made))
    return compiled


def _judge(
    subject: Subject, result: Outputs | Failure, build: Build, optimize: Optimize, tally: Tally
) -> None:
    tally.builds[f"{build.name} {optimize}"] += 1
    if isinstance(result, Failure):
        what = result.what
    else:
        tally.elements += sum(array.size for outputs in result for array in outputs)
        what = difference(result, subject.truth)
    if what:
        network = subject.network
        finding = Finding(network.recipe, build.name, optimize, what, network.operators)
        tally.findings.append(finding)


def _run_simulated(
    subjects: Sequence[Subject], build: Build, optimize: Optimize, tally: Tally
) -> None:
    """Run all networks in one firmware; if that fails, each in its own."""
    members = [Member(s.imported.graph, s.network.samples) for s in subjects]
    options = build.options(optimize)
    try:
        found: Sequence[Outputs | Failure] = run_together(members, options)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        if len(subjects) > 1:
            for subject in subjects:
                _run_simulated([subject], build, optimize, tally)
            return
        found = [Failure(f"{type(error).__name__}: {error}"[:2000])]
    for subject, result in zip(subjects, found, strict=True):
        _judge(subject, result, build, optimize, tally)


def shrunk(finding: Finding, build: Build | None) -> Finding:
    """Reduce a finding's steps and channels while it still fails in the same build."""

    def tried(recipe: Recipe) -> Finding | None:
        settings: list[Setting] = [] if build is None else [(build, finding.optimize)]
        found = run_batch([recipe], settings).findings
        return found[0] if found else None

    best = finding
    for step in sorted(generate(finding.recipe).steps, reverse=True):
        without = best.recipe.without | {step}
        best = tried(_with(best.recipe, without, best.recipe.channels)) or best
    for channels in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        if channels >= best.recipe.channels:
            break
        smaller = tried(_with(best.recipe, best.recipe.without, channels))
        if smaller is not None:
            return smaller
    return best


def _with(recipe: Recipe, without: frozenset[int], channels: int) -> Recipe:
    return Recipe(recipe.kind, recipe.seed, recipe.index, without, channels)


def summary(tally: Tally) -> Mapping[str, object]:
    """Summarize a run in figures."""
    return {
        "networks": dict(tally.networks),
        "compared with": dict(tally.engines),
        "programs of one network": sum(tally.builds.values()),
        "elements compared": tally.elements,
        "builds": dict(sorted(tally.builds.items())),
        "refused": len(tally.refused),
        "operators": dict(tally.operators.most_common()),
        "findings": [[finding.what, finding.command] for finding in tally.findings],
    }
