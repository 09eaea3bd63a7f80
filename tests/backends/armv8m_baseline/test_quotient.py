"""int8 divisions by instruction equal the reference for every pair of inputs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from smelt.codegen.backends.armv8m_baseline.quotient import KERNELS, division
from smelt.codegen.lower.backend import Backend
from smelt.codegen.lower.kernel import KernelCall, Refusal, Request
from smelt.ir import Array, DType, Graph, Node, Origin, Quant, Rounding, TensorType, Value, evaluate
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.targets import get
from tests.support.graphs import SETUPS, TWINS, Member, assert_same, compile_graph, run_together

OURS = Backend("armv8m_baseline", KERNELS)
M23 = get("cortex-m23")
STORED = np.arange(-128, 128).astype(np.int8)


def graph(
    scales: tuple[float, float, float],
    points: tuple[int, int, int],
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((256, 256), (256, 256)),
    *,
    kind: str = "div",
    activation: Activation = Activation.NONE,
    rounding: Rounding = Rounding.TFLM,
) -> Graph:
    """Return a graph of one node, given the quantization of dividend, divisor and quotient."""
    shape = np.broadcast_shapes(*shapes)
    a, b, y = (
        Value(name, TensorType(own, DType.INT8, Quant.per_tensor(scale, point)))
        for name, own, scale, point in zip("aby", (*shapes, shape), scales, points, strict=True)
    )
    node = Node(Binary(kind, activation), (a, b), (y,), Origin(kind, 0), rounding)
    return Graph(kind, (a, b), (y,), (node,))


def answer(graph: Graph) -> KernelCall | Refusal:
    return OURS.find(graph.nodes[0], Request(M23))


ALIKE, ROWS, FIRST = ((256, 256), (256, 256)), ((256, 256), (256, 1)), ((1, 256), (256, 1))
GRAPHS = {
    "positive divisors": graph((0.013, 0.021, 0.0247), (3, -128, -7)),
    "divisors of both signs": graph((0.71, 0.033, 0.9), (-128, 11, -128)),
    "rows": graph((0.013, 0.0071, 0.11), (127, -128, 40), ROWS),
    "both broadcast": graph((0.0041, 0.5, 0.00023), (0, 0, 0), FIRST),
    "steep": graph((0.9, 0.0011, 1.7), (-3, -90, 5), activation=Activation.RELU),
    "flat": graph((0.001, 0.9, 0.013), (-3, -90, 5), activation=Activation.RELU6),
}


def samples(graph: Graph) -> tuple[Array, Array]:
    """Return every pair of inputs."""
    a, b = (value.type.shape for value in graph.inputs)
    return (
        np.broadcast_to(STORED, a).copy(),
        np.broadcast_to(STORED[:, None], b).copy(),
    )


@pytest.mark.quick(setup=("host as m23",))
@pytest.mark.parametrize("setup", [pytest.param("m23", marks=pytest.mark.qemu), "host as m23"])
def test_every_pair_of_inputs(setup: str) -> None:
    members = [Member(one, [samples(one)]) for one in GRAPHS.values()]
    for one in GRAPHS.values():
        served = compile_graph(one, (SETUPS | TWINS)[setup]).schedule.calls
        assert [step.call.form for step in served] == ["armv8m_baseline_sdiv"]
    found = run_together(members, (SETUPS | TWINS)[setup])
    for name, member, outputs in zip(GRAPHS, members, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, name)


def test_usual_scales_are_served() -> None:
    rng = np.random.default_rng(5)
    served = 0
    for _ in range(40):
        a, b = 10.0 ** rng.uniform(-3, 0, 2)
        scales = float(a), float(b), float(a / b * 10.0 ** rng.uniform(-2, 0.3))
        first, second, third = (int(point) for point in rng.integers(-128, 128, 3))
        served += isinstance(answer(graph(scales, (first, second, third))), KernelCall)
    assert served == 40


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (graph((0.5, 0.25, 2.0), (0, 0, 0)), "no quotient of two integers is exact"),
        (graph((1.0, 1e-9, 1.0), (0, 0, 0)), "no quotient of two integers is exact"),
        (graph((0.1, 0.2, 0.3), (0, 0, 0), kind="mul"), "is not a division"),
    ],
)
def test_refusals(one: Graph, why: str) -> None:
    found = answer(one)
    assert isinstance(found, Refusal)
    assert why in found.reason


def test_numbers_stay_within_32_bits() -> None:
    for one in GRAPHS.values():
        found = division(one.nodes[0])
        assert found is not None
        assert found.zero % 2 == 0
        a, b = (int(np.abs(STORED.astype(int) - v.type.zero_point).max()) for v in one.inputs)
        assert a * found.factor + (b << found.shift >> 1) < 2**31


@pytest.mark.qemu
def test_the_compiler_divides_by_an_instruction(tmp_path: Path) -> None:
    compile_graph(GRAPHS["rows"], SETUPS["m23"]).write(tmp_path / "made")
    command = ["arm-none-eabi-gcc", *M23.arch_flags, "-O2", "-S", "-o", "-"]
    source = next((tmp_path / "made").rglob("*_net_kernels.c"))
    text = subprocess.run([*command, source], check=True, capture_output=True, text=True).stdout
    assert (text.count("\tsdiv\t"), text.count("\tbl\t")) == (1, 0)
