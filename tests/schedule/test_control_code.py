"""Tests of control flow in generated C: its results, its text and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from smelt.codegen.passes import run_passes
from smelt.codegen.passes.cleanup.constant_folding import fold_constants
from smelt.codegen.passes.cleanup.dead_nodes import drop_dead_nodes, drop_identities
from smelt.codegen.passes.cleanup.materialize import materialize_results
from smelt.ir import DType, Graph, Node, Op, Origin, TensorType, Value, evaluate, verify
from smelt.ir.text import parse_graph, print_graph
from smelt.ops.control.branches import If, Loop, While
from smelt.ops.control.repeated_graph import Order
from smelt.ops.core.binary import Binary
from smelt.ops.core.unary import Unary
from smelt.ops.tensor.reshape import Reshape
from smelt.proof.verify import find_first_difference
from smelt.samples import Sample, random_samples
from tests.support.graphs import SETUPS, Member, assert_same, combine, compile_graph, run_together
from tests.support.sanitized import run_sanitized

VECTOR = TensorType((4,), DType.FLOAT32)
NUMBER = TensorType((), DType.INT64)
CONDITION = TensorType((), DType.BOOL)
FEW = (-1, 0, 1, 2, 3, 5)
"""Values of integer inputs in random samples; some loops use them as number of iterations."""


# --- random graphs ---------------------------------------------------------------------------


@dataclass
class Builder:
    """A random graph under construction, which may contain branches and loops.

    Attributes:
        rng: the source of all random choices.
        depth: how many levels of branches and loops the graph may still contain.
        vectors: values of type `VECTOR` that later nodes can read.
        conditions: values of type `CONDITION` that later nodes can read.
        numbers: values of type `NUMBER` that later nodes can read.
        inputs: the inputs of the graph.
        nodes: the nodes so far.
        names: how many names were given.
    """

    rng: np.random.Generator
    depth: int
    vectors: list[Value] = field(default_factory=list[Value])
    conditions: list[Value] = field(default_factory=list[Value])
    numbers: list[Value] = field(default_factory=list[Value])
    inputs: list[Value] = field(default_factory=list[Value])
    nodes: list[Node] = field(default_factory=list[Node])
    names: int = 0

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def add_input(self, type_: TensorType) -> Value:
        value = Value(self.name(), type_)
        self.inputs.append(value)
        self.record(value)
        return value

    def record(self, value: Value) -> None:
        kinds = {VECTOR: self.vectors, CONDITION: self.conditions, NUMBER: self.numbers}
        if value.type in kinds:
            kinds[value.type].append(value)

    def apply(self, op: Op, *inputs: Value | None) -> tuple[Value, ...]:
        types = op.infer([None if v is None else v.type for v in inputs])
        outputs = tuple(Value(self.name(), type_) for type_ in types)
        origin = Origin(type(op).__name__.upper(), len(self.nodes), outputs[0].name)
        self.nodes.append(Node(op, inputs, outputs, origin))
        for value in outputs:
            self.record(value)
        return outputs

    def pick(self, values: Sequence[Value]) -> Value:
        return values[int(self.rng.integers(len(values)))]

    def vector(self) -> Value:
        if not self.vectors or self.rng.random() < 0.1:
            data = self.rng.uniform(-1, 1, 4).astype(np.float32)
            return Value.constant(self.name(), data)
        return self.pick(self.vectors)

    def condition(self) -> Value:
        if not self.conditions or self.rng.random() < 0.1:
            return Value.constant(self.name(), np.array(self.rng.random() < 0.5))
        return self.pick(self.conditions)

    def add_random_node(self) -> None:
        kinds = ["unary", "binary", "reshape"]
        if self.depth:
            kinds += ["if", "loop", "while", "if", "loop"]
        getattr(self, f"_{self.rng.choice(kinds)}")()

    def _unary(self) -> None:
        self.apply(Unary(str(self.rng.choice(["tanh", "neg", "abs", "sin"]))), self.vector())

    def _binary(self) -> None:
        kind = str(self.rng.choice(["add", "sub", "mul", "maximum"]))
        self.apply(Binary(kind), self.vector(), self.vector())

    def _reshape(self) -> None:
        (flat,) = self.apply(Reshape((2, 2)), self.vector())
        self.apply(Reshape((4,)), flat)

    def _if(self) -> None:
        count, taken = self.rng.integers(1, 4), self.rng.integers(1, 4)
        types = [CONDITION, *[VECTOR] * taken]
        graphs = [random_subgraph(self, types, [VECTOR] * count) for _ in range(2)]
        operands = [self.condition(), *(self.vector() for _ in range(taken))]
        self.apply(If(*graphs), self.condition(), *operands)

    def _loop(self) -> None:
        carried, scanned, fixed = (int(self.rng.integers(n)) for n in (4, 3, 3))
        bounded = not self.numbers or bool(self.rng.random() < 0.7)
        trip_count = int(self.rng.integers(4)) if bounded else None
        stops = bool(self.rng.random() < 0.4)
        scans = self._orders(scanned if bounded else 0)
        stacks = self._orders(int(self.rng.integers(3)) if bounded and not stops else 0)
        if not carried and not stacks:
            carried = 1
        types = [NUMBER, *[VECTOR] * (carried + len(scans) + fixed), CONDITION]
        results = [*[CONDITION] * stops, *[VECTOR] * (carried + len(stacks))]
        body = random_subgraph(self, types, results)
        limit = None if bounded else self.pick(self.numbers)
        start = self.condition() if self.rng.random() < 0.3 and not stacks else None
        operands = [self.vector() for _ in range(carried)]
        operands += [self._table(trip_count or 0) for _ in scans]
        operands += [self.vector() for _ in range(fixed)]
        op = Loop(body, carried, trip_count, stops, scans, stacks)
        outputs = self.apply(op, limit, start, *operands, self.condition())
        for value in outputs[carried:]:
            if trip_count:
                (flat,) = self.apply(Reshape((trip_count * 4,)), value)
                self.apply(Unary("neg"), flat)

    def _while(self) -> None:
        """Add a loop of at most 3 iterations: each shifts three conditions and appends a false."""
        types = [*[CONDITION] * 3, VECTOR, VECTOR]
        condition = random_subgraph(self, types, [CONDITION])
        body = random_subgraph(self, types, types)
        never = Value.constant("never", np.array(False))
        up = body.inputs[1], body.inputs[2], never
        body = replace(body, outputs=(*up, *body.outputs[3:]))
        condition = replace(condition, outputs=condition.inputs[:1])
        operands = *(self.condition() for _ in range(3)), self.vector(), self.vector()
        self.apply(While(condition, body), *operands)

    def _orders(self, count: int) -> tuple[Order, ...]:
        return tuple(Order(o) for o in self.rng.choice(["forward", "backward"], count))

    def _table(self, trip_count: int) -> Value:
        if self.rng.random() < 0.3:
            data = self.rng.uniform(-1, 1, (trip_count, 4)).astype(np.float32)
            return Value.constant(self.name(), data)
        return self.add_input_or_constant(TensorType((trip_count, 4), DType.FLOAT32))

    def add_input_or_constant(self, type_: TensorType) -> Value:
        if self.depth == OUTERMOST:
            return self.add_input(type_)
        data = self.rng.uniform(-1, 1, type_.shape).astype(np.float32)
        return Value.constant(self.name(), data)


OUTERMOST = 3
"""Depth of the outermost graph."""


def random_subgraph(
    outer: Builder, types: Sequence[TensorType], results: Sequence[TensorType]
) -> Graph:
    """Return a random graph for a branch or a loop of another graph."""
    builder = Builder(outer.rng, outer.depth - 1)
    for type_ in types:
        builder.add_input(type_)
    for _ in range(int(outer.rng.integers(4))):
        builder.add_random_node()
    outputs = tuple(builder.condition() if t == CONDITION else builder.vector() for t in results)
    return Graph(f"inside{outer.names}", tuple(builder.inputs), outputs, tuple(builder.nodes))


def random_graph(seed: int) -> Graph:
    builder = Builder(np.random.default_rng(seed), OUTERMOST)
    for type_ in (VECTOR, VECTOR, CONDITION, CONDITION, NUMBER, NUMBER):
        builder.add_input(type_)
    while not any(node.op.subgraphs for node in builder.nodes):
        for _ in range(4):
            builder.add_random_node()
    outputs = dict.fromkeys([*(node.outputs[-1] for node in builder.nodes), builder.vectors[-1]])
    graph = Graph("random", tuple(builder.inputs), tuple(outputs), tuple(builder.nodes))
    return verify(graph, "building it")


def samples_of_few_iterations(graph: Graph, count: int, seed: int) -> list[Sample]:
    """Return random samples whose numbers are those of `FEW`."""
    rng = np.random.default_rng(seed)
    return [
        tuple(
            np.asarray(rng.choice(FEW), np.int64) if value.type == NUMBER else array
            for value, array in zip(graph.inputs, sample, strict=True)
        )
        for sample in random_samples(graph, count, seed)
    ]


def random_members(seeds: Sequence[int]) -> list[Member]:
    graphs = [random_graph(seed) for seed in seeds]
    return [Member(graph, samples_of_few_iterations(graph, 6, 1)) for graph in graphs]


def check_outputs(setup: str, chosen: Sequence[Member]) -> None:
    found = run_together(chosen, SETUPS[setup])
    for member, outputs in zip(chosen, found, strict=True):
        expected = [evaluate(member.graph, sample).outputs for sample in member.samples]
        assert_same(outputs, expected, str(member))


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_random_graphs_on_the_host(first: int) -> None:
    check_outputs("host", random_members(range(first, first + 15)))


@pytest.mark.quick(setup=("m4",))
@pytest.mark.qemu
@pytest.mark.parametrize("setup", ["m0", "m4"])
def test_random_graphs_on_simulated_cores(setup: str) -> None:
    check_outputs(setup, random_members(range(200, 210)))


@pytest.mark.thorough
def test_random_graphs_under_sanitizers(tmp_path: Path) -> None:
    graph = combine("all", [random_graph(seed) for seed in range(300, 315)])
    artifact = compile_graph(graph)
    samples = samples_of_few_iterations(graph, 5, 2)
    outputs = run_sanitized(artifact, samples, tmp_path / "project")
    assert_same(outputs, [evaluate(graph, s).outputs for s in samples], print_graph(graph))


@pytest.mark.parametrize("seed", range(400, 440))
def test_passes_keep_every_bit(seed: int) -> None:
    graph = random_graph(seed)
    passes = fold_constants, drop_identities, drop_dead_nodes, materialize_results
    optimized = run_passes(graph, passes)
    for sample in samples_of_few_iterations(graph, 6, 3):
        for ours, theirs in zip(
            evaluate(optimized, sample).outputs, evaluate(graph, sample).outputs, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


# --- generated code and its memory -----------------------------------------------------------


def parse(text: str) -> Graph:
    return verify(parse_graph(f'smelt-ir 1\ngraph "g" {{\n{dedent(text)}\n}}\n', {}), "parsing")


def invocation(graph: Graph) -> str:
    """Return the body of the network's `invoke`, without the calls that trace."""
    text = compile_graph(graph).project.files["g_net.c"]
    lines = text[text.index("g_net_invoke(g_net_t *ctx) {") :].splitlines()
    start = lines.index("    uint8_t *const arena = ctx->arena;") + 1
    return "\n".join(x for x in lines[start:] if x.strip() and "STEP_DONE" not in x)


def without_blank_lines(text: str) -> str:
    return "\n".join(line for line in dedent(text).splitlines() if line.strip())


TWO_BRANCHES = """
    input %c: bool[]
    input %x: f32[100]
    %y: f32[100] = If(%c, %x) {then_graph=graph "then" {
      input %p: f32[100]
      %a: f32[100] = Unary(%p) {kind="neg"} from NEG #0 "a"
      %b: f32[100] = Binary(%a, %p) {kind="add"} from ADD #1 "b"
      output %b
    }, else_graph=graph "else" {
      input %p: f32[100]
      %a: f32[100] = Unary(%p) {kind="abs"} from ABS #0 "a"
      %b: f32[100] = Binary(%a, %p) {kind="mul"} from MUL #1 "b"
      output %b
    }} from IF #0 "y"
    output %y
    """


def test_branches_write_to_the_result_and_share_memory() -> None:
    """The arena holds the input, the result and one temporary, whose bytes both branches use."""
    graph = parse(TWO_BRANCHES)
    artifact = compile_graph(graph)
    assert artifact.network.arena_bytes <= 3 * 400 + 16
    text = invocation(graph)
    assert text.count("memcpy") == 0
    assert "if (*(arena + " in text
    results = [step.results for step in artifact.schedule.steps if step.node.name in ("y", "b")]
    assert len(results) == 3
    assert len({result[0] for result in results}) == 1


def test_steps_name_the_step_that_encloses_them() -> None:
    steps = compile_graph(parse(TWO_BRANCHES)).schedule.steps
    assert [(s.index, s.inside, s.node.name) for s in steps] == [
        (0, None, "y"),
        (1, 0, "a"),
        (2, 0, "b"),
        (3, 0, "a"),
        (4, 0, "b"),
    ]


def test_a_scan_copies_only_its_initial_state() -> None:
    """The sum is computed in place, and slices are read and written inside the whole tensors."""
    graph = parse(
        """
        input %xs: f32[5,4]
        const %zero: f32[4] = [0.0, 0.0, 0.0, 0.0]
        %h: f32[4], %ys: f32[5,4] = Loop(_, _, %zero, %xs) {body=graph "body" {
          input %t: i64[]
          input %h: f32[4]
          input %x: f32[4]
          %sum: f32[4] = Binary(%h, %x) {kind="add"} from ADD #0 "sum"
          %y: f32[4] = Unary(%x) {kind="neg"} from NEG #1 "y"
          output %sum
          output %y
        }, carried=1, trip_count=5, scans=(backward), stacks=(forward)} from SCAN #3 "h"
        output %h
        output %ys
        """
    )
    assert invocation(graph) == without_blank_lines(
        """
        /* 0: SCAN #3 'h': Loop f32[5,4] -> f32[4], f32[5,4] */
        memcpy(arena + ARENA_OFFSET_h, g_net_copy0_source, 16); /* 'zero' */
        for (int32_t i = 0; i < 5; ++i) {
            /* 1: ADD #0 'sum': Binary(add) f32[4] x f32[4] -> f32[4] */
            g_net_add(
                (const float *)(arena + ARENA_OFFSET_h),
                (const float *)(arena + ARENA_OFFSET_xs + (4 - i) * 16),
                (float *)(arena + ARENA_OFFSET_h));
            /* 2: NEG #1 'y': Unary(neg) f32[4] -> f32[4] */
            g_net_neg(
                (const float *)(arena + ARENA_OFFSET_xs + (4 - i) * 16),
                (float *)(arena + ARENA_OFFSET_ys + i * 16));
        }
        return G_NET_OK;
    }
        """
    )


COUNTDOWN = """
    input %go: bool[]
    input %next: bool[]
    input %x: f32[4]
    %a: bool[], %b: bool[], %y: f32[4] = While(%go, %next, %x) {condition=graph "c" {
      input %a: bool[]
      input %b: bool[]
      input %x: f32[4]
      output %a
    }, body=graph "body" {
      input %a: bool[]
      input %b: bool[]
      input %x: f32[4]
      const %false: bool[] = [false]
      %y: f32[4] = Unary(%x) {kind="neg"} from NEG #0 "y"
      output %b
      output %false
      output %y
    }} from WHILE #0 "y"
    output %y
    """


def test_a_while_loop_breaks_when_its_condition_is_false() -> None:
    text = invocation(parse(COUNTDOWN))
    assert "for (;;) {\n        if (!*(arena + ARENA_OFFSET_a)) {\n            break;" in text
    assert "*(arena + ARENA_OFFSET_a) = *(arena + ARENA_OFFSET_b); /* 'b' */" in text
    check_outputs(
        "host", [Member(parse(COUNTDOWN), samples_of_few_iterations(parse(COUNTDOWN), 6, 0))]
    )


def test_steps_inside_control_flow_are_not_compared() -> None:
    """Such a step may run any number of times: only the branch or loop's result is compared."""
    graph = random_graph(7)
    artifact = compile_graph(graph)
    assert any(step.inside is not None for step in artifact.schedule.steps)
    samples = samples_of_few_iterations(graph, 3, 0)
    values = evaluate(artifact.graph, samples[-1]).values
    assert find_first_difference(artifact, samples, values).startswith("With TRACE=1, every step")
    wrong = {v: a if a.dtype.kind != "f" else a + 1 for v, a in values.items()}
    assert "First layer that differs: step" in find_first_difference(artifact, samples, wrong)


# --- folding of constants --------------------------------------------------------------------


def folded(text: str) -> Graph:
    return run_passes(parse(text), (fold_constants, drop_identities, drop_dead_nodes))


def kinds(graph: Graph) -> list[str]:
    return [type(node.op).__name__ for node in graph.nodes]


def test_a_constant_condition_leaves_one_graph() -> None:
    text = TWO_BRANCHES.replace("input %c: bool[]", "const %c: bool[] = [false]")
    graph = folded(text)
    assert [node.op.name for node in graph.nodes] == ["Unary(abs)", "Binary(mul)"]
    assert graph.outputs[0].name == "y"


LOOP = """
    input %x: f32[4]
    input %w: f32[4]
    const %limit: i64[] = [{trip_count}]
    const %k: f32[4] = [1.0, 2.0, 3.0, 4.0]
    %y: f32[4], %same: f32[4] = Loop(%limit, _, %x, %w, %k) {{body=graph "body" {{
      input %t: i64[]
      input %x: f32[4]
      input %w: f32[4]
      input %k: f32[4]
      const %more: bool[] = [{more}]
      %s: f32[4] = Binary(%x, %k) {{kind="add"}} from ADD #0 "s"
      %y: f32[4] = Binary(%s, %w) {{kind="mul"}} from MUL #1 "y"
      output %more
      output %y
      output %w
    }}, carried=2, stops=true}} from LOOP #0 "y"
    output %y
    output %same
    """


def test_folding_specializes_a_loop() -> None:
    """It uses the constant limit, condition and operand, and does not carry what never changes."""
    graph = folded(LOOP.format(trip_count=3, more="true"))
    assert kinds(graph) == ["Loop", "Copy"]
    op = graph.nodes[0].op
    assert isinstance(op, Loop)
    assert (op.trip_count, op.stops, op.carried) == (3, False, 1)
    assert [v.name for v in op.body.inputs] == ["t", "x", "w"]
    assert [v.name for v in graph.outputs] == ["y", "same"]


@pytest.mark.parametrize(
    ("trip_count", "more", "expected"),
    [
        (0, "true", ["Copy", "Copy"]),
        (1, "true", ["Binary", "Binary", "Copy"]),
        (9, "false", ["Binary", "Binary", "Copy"]),
    ],
)
def test_loops_of_zero_or_one_iteration_are_replaced(
    trip_count: int, more: str, expected: list[str]
) -> None:
    assert kinds(folded(LOOP.format(trip_count=trip_count, more=more))) == expected


def test_an_endless_loop_of_constants_is_not_folded() -> None:
    """Computing it at compile time would not end either."""
    graph = parse(
        """
        const %go: bool[] = [true]
        %y: bool[] = While(%go) {condition=graph "c" {
          input %a: bool[]
          output %a
        }, body=graph "b" {
          input %a: bool[]
          %b: bool[] = Copy(%a) from COPY #0 "b"
          output %b
        }} from WHILE #0 "y"
        output %y
        """
    )
    assert kinds(run_passes(graph, (fold_constants,))) == ["While"]
