"""Random networks: generated code equals the reference for random operators in random order.

Each example is a few networks in one program. `--hypothesis-profile=explore` draws new ones.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.api.options import Options
from smelt.ir import DType, evaluate
from tests.support.graphs import TWINS, Member, assert_same, combine, compile_graph, run_together
from tests.support.random_networks import PHASES, members
from tests.support.sanitized import run_sanitized


def options(setup: Options) -> st.SearchStrategy[Options]:
    return st.builds(
        Options,
        target=st.just(setup.target),
        board=st.just(setup.board),
        optimize=st.sampled_from(["speed", "size", "ram"]),
        keep_inputs=st.booleans(),
    )


def check(networks: list[Member], chosen: Options) -> None:
    found = run_together(networks, chosen)
    for index, (member, outputs) in enumerate(zip(networks, found, strict=True)):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, f"network {index} of the example, with {chosen}:\n{member}")


@given(networks=st.lists(members(DType.INT8), min_size=4, max_size=6), chosen=options(Options()))
@settings(max_examples=12, phases=PHASES)
def test_int8_is_exact(networks: list[Member], chosen: Options) -> None:
    check(networks, chosen)


@pytest.mark.thorough
@given(networks=st.lists(members(DType.FLOAT32), min_size=4, max_size=6), chosen=options(Options()))
@settings(max_examples=8, phases=PHASES)
def test_float32_is_close(networks: list[Member], chosen: Options) -> None:
    check(networks, chosen)


@pytest.mark.thorough
@pytest.mark.parametrize("twin", TWINS)
@given(networks=st.lists(members(DType.INT8), min_size=4, max_size=6))
@settings(max_examples=5, phases=PHASES)
def test_int8_is_exact_and_clean_in_plain_c(twin: str, networks: list[Member]) -> None:
    """The plain-C forms of functions in assembly run under sanitizers."""
    graph = combine("all", [member.graph for member in networks])
    samples = [sum(column, ()) for column in zip(*(m.samples for m in networks), strict=True)]
    with TemporaryDirectory() as folder:
        found = run_sanitized(compile_graph(graph, TWINS[twin]), samples, Path(folder) / "project")
    assert_same(found, [evaluate(graph, s).outputs for s in samples], f"{twin}:\n{networks}")


@pytest.mark.qemu
@pytest.mark.slow
@pytest.mark.parametrize(
    "board", ["mps2-an385", "mps2-an386", "mps2-an500", "mps2-an505", "mps3-an547"]
)
@given(data=st.data())
@settings(max_examples=10, phases=PHASES)
def test_int8_is_exact_on_boards(board: str, data: st.DataObject) -> None:
    networks = data.draw(st.lists(members(DType.INT8), min_size=4, max_size=8))
    check(networks, data.draw(options(Options(board=board))))
