"""The ONNX backend suite through generated C on the host: what passes, and why the rest does not.

`python -m bench conformance` prints a table by operator; `--markdown` prints the page
`docs/conformance.md`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from bench.onnx_suite import SETS, Imported, Set, Status, SuiteCase, cases
from smelt.errors import ToolError, UnsupportedError
from smelt.frontend import Imported as Network
from smelt.pipeline import compile_model
from smelt.show import Table
from tests.graphs import SETUPS, Member, run_together

BATCH = 48
"""Networks in one program."""

STATUSES: tuple[Status, ...] = (
    "passed",
    "frozen",
    "frozen scales",
    "constant",
    "unsupported",
    "failed",
)


@dataclass(frozen=True)
class Verdict:
    """What became of a case, and the reason where it did not pass."""

    name: str
    kind: Set
    operator: str
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class _Candidate:
    case: SuiteCase
    imported: Imported


def judge(chosen: Iterable[SuiteCase], *, execute: bool = True) -> Iterator[Verdict]:
    """The verdict of every case; without `execute`, what runs is taken to pass."""
    waiting: list[_Candidate] = []
    for case in chosen:
        found = _prepared(case)
        if isinstance(found, Verdict):
            yield found
        elif not execute:
            yield _verdict(case, found.imported.status)
        else:
            waiting.append(found)
        if len(waiting) == BATCH:
            yield from _run(waiting)
            waiting = []
    yield from _run(waiting)


def _prepared(case: SuiteCase) -> _Candidate | Verdict:
    try:
        imported = case.imported()
        compile_model(Network(imported.graph))
    except UnsupportedError as error:
        return _verdict(case, "unsupported", str(error))
    except Exception as error:  # noqa: BLE001 - a crash is one of the things to be shown
        return _verdict(case, "failed", f"{type(error).__name__}: {error}")
    return _Candidate(case, imported)


def _run(batch: Sequence[_Candidate]) -> Iterator[Verdict]:
    """Run networks in one program; where that breaks, in halves, to find the culprit."""
    if not batch:
        return
    members = [Member(c.imported.graph, [e.inputs for e in c.imported.expectations]) for c in batch]
    counts = {len(member.samples) for member in members}
    try:
        if len(counts) > 1:
            raise ToolError("numbers of samples differ")
        found = run_together(members, SETUPS["host"])
    except Exception as error:  # noqa: BLE001 - see above
        if len(batch) == 1:
            yield _verdict(batch[0].case, "failed", f"{type(error).__name__}: {error}")
            return
        middle = len(batch) // 2
        yield from _run(batch[:middle])
        yield from _run(batch[middle:])
        return
    for candidate, outputs in zip(batch, found, strict=True):
        wrong = [
            reason
            for ours, expected in zip(outputs, candidate.imported.expectations, strict=True)
            if (reason := candidate.case.mismatch(ours, expected)) is not None
        ]
        status = "failed" if wrong else candidate.imported.status
        yield _verdict(candidate.case, status, "; ".join(wrong))


def _verdict(case: SuiteCase, status: Status, reason: str = "") -> Verdict:
    return Verdict(case.name, case.kind, case.operator, status, _general(reason))


def _general(reason: str) -> str:
    """A refusal without the names of one file's operators and tensors."""
    text = re.sub(r"^\S+ #\d+( '[^']*')?: ", "", " ".join(reason.split()))
    text = re.sub(r" \(#\d+ of the file, from .*? to .*?\)", "", text)
    text = re.sub(r"(constant|input|output) '[^']*'( of \S+ #\d+( '[^']*')?)?", r"an \1", text)
    text = re.sub(r"'[^']*'", "…", text)
    return text.partition(". `smelt ops`")[0].partition(": export")[0]


def summary(verdicts: Sequence[Verdict]) -> Table:
    """How many cases of each set ended in which way."""
    counts = Counter((v.kind, v.status) for v in verdicts)
    rows = [
        (kind, *(counts[kind, status] for status in STATUSES), f"{_share(verdicts, kind):.1%}")
        for kind in SETS
        if any(v.kind == kind for v in verdicts)
    ]
    return Table(("set", *STATUSES, "passed or frozen"), tuple(rows))


def _share(verdicts: Sequence[Verdict], kind: Set) -> float:
    own = [v.status for v in verdicts if v.kind == kind]
    return sum(status in ("passed", "frozen") for status in own) / max(len(own), 1)


def by_operator(verdicts: Sequence[Verdict]) -> Table:
    """The node cases by operator, with the reasons of refusals."""
    groups: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.kind == "node":
            groups[verdict.operator].append(verdict)
    rows = [
        (
            operator,
            *(sum(v.status == status for v in own) for status in STATUSES),
            "; ".join(sorted({v.reason for v in own if v.reason})),
        )
        for operator, own in sorted(groups.items())
    ]
    return Table(("operator", *STATUSES, "why not"), tuple(rows))


def page(verdicts: Sequence[Verdict]) -> str:
    """The page `docs/conformance.md`."""
    failures = [v for v in verdicts if v.status == "failed"]
    return (
        "\n".join(
            [
                "# Conformance to ONNX",
                "",
                "The backend suite of the package `onnx` through generated C on the host, by",
                "`python -m bench conformance --markdown`. Data inputs are read at run time.",
                "*frozen*: an integer input that says axes, pads, repeats or a shape is made",
                "constant; *frozen scales*: so are the real scales of Resize; *constant*: the",
                "result depends on shapes alone, and nothing is left to compute on the device.",
                "",
                summary(verdicts).markdown(),
                "",
                "## By operator",
                "",
                by_operator(verdicts).markdown(),
                *(f"- failed: {v.name}: {v.reason}" for v in failures),
            ]
        )
        + "\n"
    )


def main(
    pattern: Annotated[str, typer.Argument(help="Only cases whose name contains this.")] = "",
    sets: Annotated[str, typer.Option(help="Sets, separated by commas.")] = ",".join(SETS),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation.")] = False,
    execute: Annotated[bool, typer.Option(help="Compile and run, or only import.")] = True,
) -> None:
    """Run the ONNX backend suite through generated C on the host."""
    chosen = [c for c in cases(s for s in SETS if s in sets.split(",")) if pattern in c.name]
    console = Console(stderr=True)
    verdicts = list(judge(track(chosen, console=console), execute=execute))
    if markdown:
        typer.echo(page(verdicts), nl=False)
        return
    output = Console()
    by_operator(verdicts).print(output)
    summary(verdicts).print(output)
    for verdict in verdicts:
        if verdict.status == "failed":
            output.print(f"failed: {verdict.name}: {verdict.reason}", markup=False)
