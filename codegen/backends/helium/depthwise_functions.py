"""The functions for strips of depthwise convolutions on Helium, which layers share."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.backends.helium.assembly import AssemblyLines
from smelt.codegen.backends.helium.depthwise_assembly import interleave_assembly, strip_assembly
from smelt.codegen.backends.helium.depthwise_plan import Patches
from smelt.codegen.backends.helium.scaling import (
    GroupRun,
    HeliumScaling,
    ScaledDefinition,
    groups,
    runs,
)
from smelt.codegen.lower.kernel import InnerFunction, Parameters


@dataclass(frozen=True)
class StripParameters(Parameters):
    """Variables of `backends/helium/strip.j2`, the function that computes all outputs of a strip.

    Attributes:
        lanes: number of channels.
        first: whether it computes only the first of two output columns.
        line: whether the image is one row.
        body: its assembly.
        targets: for each output column the index of its first sum and the parameter's name.
        starts: for each output of a patch the offset of its shifted weights, in bytes.
        record: words of a channel's weights.
        patches: patches of a channel.
        outputs: outputs of a patch.
        advance: rows from one patch to the next.
        sums: sums of a channel.
        runs: how outputs are stored.
        constants: words of constants for four channels.
        scaled: the function that turns a sum into an output.
    """

    lanes: int
    first: bool
    line: bool
    body: AssemblyLines
    targets: tuple[tuple[int, str], ...]
    starts: tuple[int, ...]
    record: int
    patches: int
    outputs: int
    advance: int
    sums: int
    runs: tuple[GroupRun, ...]
    constants: int
    scaled: ScaledDefinition


@dataclass(frozen=True)
class InterleaveParameters(Parameters):
    """Variables of `backends/helium/interleave.j2`.

    Attributes:
        lanes: number of channels.
        body: the assembly.
    """

    lanes: int
    body: AssemblyLines


def interleave_function(lanes: int) -> InnerFunction:
    """Return the function that fills rows of a strip with `lanes` channels."""
    parameters = InterleaveParameters(lanes, interleave_assembly(lanes).body)
    template = "backends/helium/interleave.j2"
    return InnerFunction(template, f"interleave{lanes}", parameters, {"SMELT_NAKED"})


def strip_function(p: Patches, scaling: HeliumScaling, lanes: int, *, first: bool) -> InnerFunction:
    """Return the function for `lanes` channels; `first`: only for the first output column."""
    parameters = StripParameters(
        lanes=lanes,
        first=first,
        line=p.line,
        body=strip_assembly(p, scaling, groups(lanes)).body,
        targets=tuple((i, f"out{i}") for i in range(p.across)),
        starts=tuple(p.lead - shift for shift in p.shifts),
        record=p.record,
        patches=p.patches,
        outputs=p.outputs,
        advance=p.advance,
        sums=p.sums,
        runs=runs(groups(lanes)),
        constants=4 * scaling.fields,
        scaled=scaling.definition,
    )
    stem = f"strip{lanes}_last" if first else f"strip{lanes}"
    uses = scaling.uses | {"SMELT_NAKED"}
    return InnerFunction("backends/helium/strip.j2", stem, parameters, uses)
