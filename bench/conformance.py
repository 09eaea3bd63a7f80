"""The ONNX backend test suite, run as generated C on the host.

`python -m bench conformance` prints a table by operator; `--markdown` prints the page
`docs/conformance.md`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.progress import track

from bench.combined import Member, SampleOutputs, run_combined
from bench.onnx_suite import SETS, Expectation, ImportedCase, Set, Status, SuiteCase, cases
from smelt.api.compile import compile_model
from smelt.cli.show.tables import TextTable
from smelt.errors import ToolError, UnsupportedError
from smelt.frontend import Imported as Network
from smelt.ir import Graph
from smelt.proof.run import run
from smelt.samples import Sample

BATCH = 48
"""Networks per program."""

STATUSES: tuple[Status, ...] = get_args(Status)
COUNTED: tuple[Status, ...] = ("passed", "frozen")
"""Statuses that count as correct in the share of a set."""


@dataclass(frozen=True)
class CaseVerdict:
    """The result of a case.

    Attributes:
        name: Name of the case.
        kind: Its set.
        operator: The operator that it tests.
        status: How it ended.
        counted: Whether the case counts as correct: its status is one of `COUNTED`. If the outputs
            equal only ONNX Runtime's, the status before the comparison decides.
        reason: Why it did not pass; empty if it passed.
    """

    name: str
    kind: Set
    operator: str
    status: Status
    counted: bool
    reason: str = ""


@dataclass(frozen=True)
class _PreparedCase:
    case: SuiteCase
    imported: ImportedCase


def judge(chosen: Iterable[SuiteCase], *, execute: bool = True) -> Iterator[CaseVerdict]:
    """Yield the verdict of every case; without `execute`, assume that every program is correct."""
    waiting: list[_PreparedCase] = []
    for case in chosen:
        found = _prepared(case)
        if isinstance(found, CaseVerdict):
            yield found
        elif not execute:
            yield _verdict(case, found.imported.status)
        elif case.kind == "light":
            yield from _run([found])  # alone, because it may have half a gigabyte of weights
        else:
            waiting.append(found)
        if len(waiting) == BATCH:
            yield from _run(waiting)
            waiting = []
    yield from _run(waiting)


def _prepared(case: SuiteCase) -> _PreparedCase | CaseVerdict:
    try:
        imported = case.imported()
        compiled = compile_model(Network(imported.graph))
    except UnsupportedError as error:
        return _verdict(case, "unsupported", str(error))
    except Exception as error:  # noqa: BLE001 - crashes are reported as failed cases
        return _verdict(case, "failed", f"{type(error).__name__}: {error}")
    if imported.status != "constant" and not compiled.schedule.steps:
        imported = replace(imported, status="no kernel")
    return _PreparedCase(case, imported)


def _run(batch: Sequence[_PreparedCase]) -> Iterator[CaseVerdict]:
    """Run networks in one program; if it fails, run halves to find the network that fails."""
    if not batch:
        return
    members = [Member(c.imported.graph, [e.inputs for e in c.imported.expectations]) for c in batch]
    counts = {len(member.samples) for member in members}
    try:
        if len(counts) > 1:
            raise ToolError("numbers of samples differ")
        found = run_combined(members, _on_the_host)
    except Exception as error:  # noqa: BLE001 - any error may be one network's: see below
        if len(batch) == 1:
            yield _verdict(batch[0].case, "failed", f"{type(error).__name__}: {error}")
            return
        middle = len(batch) // 2
        yield from _run(batch[:middle])
        yield from _run(batch[middle:])
        return
    for candidate, outputs in zip(batch, found, strict=True):
        yield _judged(candidate, outputs)


def _on_the_host(graph: Graph, samples: Sequence[Sample]) -> SampleOutputs:
    return list(run(compile_model(Network(graph)), samples).outputs)


def _judged(candidate: _PreparedCase, outputs: SampleOutputs) -> CaseVerdict:
    """Compare with the suite's stored outputs; if these differ, with ONNX Runtime's."""
    case, imported = candidate.case, candidate.imported
    wrong = _mismatches(case, outputs, imported.expectations)
    if not wrong:
        return _verdict(case, imported.status)
    judge = case.by_onnxruntime()
    if judge is not None and not _mismatches(case, outputs, judge):
        return replace(_verdict(case, imported.status), status="onnxruntime")
    return _verdict(case, "failed", "; ".join(wrong))


def _mismatches(
    case: SuiteCase, outputs: SampleOutputs, expectations: Sequence[Expectation]
) -> list[str]:
    found = (case.mismatch(o, e) for o, e in zip(outputs, expectations, strict=True))
    return [reason for reason in found if reason is not None]


def _verdict(case: SuiteCase, status: Status, reason: str = "") -> CaseVerdict:
    counted = status in COUNTED
    return CaseVerdict(case.name, case.kind, case.operator, status, counted, _general(reason))


def _general(reason: str) -> str:
    """Return a refusal without the names of a file's operators and tensors."""
    text = re.sub(r"^\S+ #\d+( '[^']*')?: ", "", " ".join(reason.split()))
    text = re.sub(r" \(#\d+ of the file, from .*? to .*?\)", "", text)
    text = re.sub(r"(constant|input|output) '[^']*'( of \S+ #\d+( '[^']*')?)?", r"an \1", text)
    text = re.sub(r"of domain '([^']*)'", r"of \1", text)
    text = re.sub(r"'[^']*'", "…", text)
    return text.partition(". `smelt ops`")[0].partition(": export")[0]


def summary(verdicts: Sequence[CaseVerdict]) -> TextTable:
    """Return a table of the number of cases by set and status."""
    counts = Counter((v.kind, v.status) for v in verdicts)
    rows = [
        (kind, *(counts[kind, status] for status in STATUSES), f"{_share(verdicts, kind):.1%}")
        for kind in SETS
        if any(v.kind == kind for v in verdicts)
    ]
    return TextTable(("set", *STATUSES, "passed or frozen"), tuple(rows))


def _share(verdicts: Sequence[CaseVerdict], kind: Set) -> float:
    own = [v.counted for v in verdicts if v.kind == kind]
    return sum(own) / max(len(own), 1)


def by_operator(verdicts: Sequence[CaseVerdict]) -> TextTable:
    """Return a table of the node cases by operator, with the reasons of refusals."""
    groups: dict[str, list[CaseVerdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.kind == "node":
            groups[verdict.operator].append(verdict)
    rows = [
        (
            operator,
            *(sum(v.status == status for v in own) for status in STATUSES),
            _reasons(own),
        )
        for operator, own in sorted(groups.items())
    ]
    return TextTable(("operator", *STATUSES, "why not"), tuple(rows))


def _reasons(verdicts: Sequence[CaseVerdict]) -> str:
    """Return the first clause of each reason; refused element types are merged into one."""
    reasons = {re.split(_CLAUSE, v.reason)[0] for v in verdicts if v.reason}
    kinds = {reason: re.search(r"has element type (\w+)", reason) for reason in reasons}
    named = sorted({found[1] for found in kinds.values() if found is not None})
    other = sorted(reason for reason, found in kinds.items() if found is None)
    return "; ".join(([f"data of type {', '.join(named)}"] if named else []) + other)


_CLAUSE = r"[;.] |, (?=which|Smelt|whose)|: (?=export|give|its|fix|leave|the)"


def refusals(verdicts: Sequence[CaseVerdict]) -> TextTable:
    """Return a table of the unsupported cases of the sets other than `node`."""
    rows = [
        (v.kind, v.name, _reasons([v]))
        for v in verdicts
        if v.kind != "node" and v.status == "unsupported"
    ]
    return TextTable(("set", "case", "why not"), tuple(rows))


def page(verdicts: Sequence[CaseVerdict]) -> str:
    """Return the text of `docs/conformance.md`."""
    judged = [f"- {v.name}\n" for v in verdicts if v.status == "onnxruntime"]
    failures = [f"- {v.name}: {v.reason}\n" for v in verdicts if v.status == "failed"]
    parts = [
        _INTRODUCTION,
        summary(verdicts).markdown(),
        "## Node cases by operator\n",
        by_operator(verdicts).markdown(),
        "## Refused in the other sets\n",
        refusals(verdicts).markdown(),
    ]
    if judged:
        parts += ["## Correct by ONNX Runtime's outputs, which differ from the suite's\n"]
        parts += ["".join(judged)]
    if failures:
        parts += ["## Failures\n", "".join(failures)]
    return "\n".join(parts)


_INTRODUCTION = """# Conformance to ONNX

Generated by `python -m bench conformance --markdown`; do not edit.

The backend test suite of the package `onnx`, run as generated C on the host. Data inputs are read
at run time. Each case has one of these results:

- *passed*: the file was imported unchanged, and the outputs are correct.
- *frozen*: the outputs are correct after integer inputs that determine axes, pads, repeats,
  positions or a shape were made constants.
- *onnxruntime*: the outputs differ from the suite's stored ones, but agree with those of ONNX
  Runtime for the same file and data. ONNX Runtime runs only if the stored outputs differ.
- *frozen reals*: like *frozen*, but for float inputs that determine a shape (scales of Resize,
  depth of OneHot).
- *no kernel*: correct, but nothing is computed: the compiled network returns its inputs (Identity,
  Flatten, Reshape …).
- *constant*: correct, but the outputs depend only on shapes: a device has nothing to compute.
- *unsupported*: refused, for the reason given below.
- *failed*: wrong outputs or a crash.

Integers and booleans must be equal, and so must the results of Cast and CastLike. Floats must be
within the case's tolerance or 1e-6 of the expected output's range. Results of type float16 and
bfloat16, which Smelt computes in float32, must be within 1e-3 and 1e-2.

*Passed or frozen* counts cases with these results, and cases with result *onnxruntime* that would
have one of them.

Networks of the set *light* create their weights with ConstantOfShape: a file of a few kilobytes
makes up to half a gigabyte, which Smelt normally refuses. The limit is raised here.
"""


def _chosen(wanted: str | None, sets: Sequence[str]) -> list[SuiteCase]:
    """Return the cases of an operator, else those with `wanted` in their names; all if None.

    Raises:
        typer.BadParameter: There is no such set, or no such case.
    """
    if wanted is not None and not wanted.strip():
        raise typer.BadParameter("the name is empty; omit it to run the whole suite")
    unknown = [name for name in sets if name not in SETS]
    if unknown:
        raise typer.BadParameter(f"no set is called '{unknown[0]}'; there are {', '.join(SETS)}")
    known = list(cases(name for name in SETS if name in sets))
    if wanted is None:
        return known
    word = wanted.lower()
    found = [case for case in known if case.operator.lower() == word]
    found = found or [case for case in known if word in case.name.lower()]
    if not found:
        operators = {case.operator.lower(): case.operator for case in known}
        close = [operators[name] for name in get_close_matches(word, operators)]
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise typer.BadParameter(f"no operator and no case is called '{wanted}'{hint}")
    return found


def main(
    wanted: Annotated[
        str | None,
        typer.Argument(help="An operator, or a part of the cases' names; upper or lower case."),
    ] = None,
    sets: Annotated[str, typer.Option(help="Sets, separated by commas.")] = ",".join(SETS),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/conformance.md.")
    ] = False,
    execute: Annotated[
        bool, typer.Option(help="Run the generated C, or only import the cases and generate C.")
    ] = True,
) -> None:
    """Run the ONNX backend suite through generated C on the host."""
    if markdown and not execute:
        raise typer.BadParameter("--markdown needs the results of execution: omit --no-execute")
    chosen = _chosen(wanted, sets.split(","))
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
