"""Instructions that a layer executes with its own body or with a shared one."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.lower.kernel import KernelCall
from smelt.codegen.partition import sharing
from smelt.frontend import Imported
from smelt.ir import Graph
from smelt.proof.profile import executed, profile_model
from smelt.samples import Sample


def check_instructions(
    graph: Graph,
    sample: Sample,
    call: KernelCall,
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
    *,
    alone: bool,
    within: float,
) -> None:
    """Check the instructions that a kernel counts in advance.

    Args:
        graph: a graph with one layer.
        sample: its inputs.
        call: the call that the kernel offers for the layer.
        options: options that select this kernel.
        monkeypatch: makes the layer share its body, or not.
        alone: whether the layer has its own body.
        within: tolerance relative to the count.
    """
    monkeypatch.setattr(sharing, "saved_bytes", Mock(return_value=0 if alone else 1 << 20))
    monkeypatch.setattr(sharing, "MOST_SLOWDOWN", 1.0)
    artifact = compile_model(Imported(graph), options)
    (step,) = artifact.schedule.calls
    assert (step.call.key == call.key) is alone
    (counts,) = profile_model(artifact, sample).steps
    assert counts is not None
    assert call.shared is not None
    counted = (call.shared.specialized if alone else call.shared.cost).instructions
    found = executed(counts)
    assert found == pytest.approx(counted, rel=within, abs=30)
