"""Tests of the steps, buffers, functions and constants that a graph is scheduled into."""

from __future__ import annotations

from textwrap import dedent
from typing import ClassVar

import numpy as np
import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen import arena
from smelt.codegen.lower.backend import Backend, backend
from smelt.codegen.lower.kernel import Kernel, KernelCall, Refusal, Request, Scratch
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import ARENA, STATE, InBuffer, InFlash, Schedule, schedule
from smelt.errors import DoesNotFit, UnsupportedError
from smelt.ir import DType, Graph, Node, verify
from smelt.ir.text import parse_graph
from smelt.ops.core.unary import Unary
from smelt.targets import HOST, get, library_platform
from tests.support.graphs import compile_graph
from tests.support.tflite_networks import DIGITS


def parse(text: str) -> Graph:
    return verify(parse_graph(f'smelt-ir 1\ngraph "g" {{\n{dedent(text)}\n}}\n', {}), "parsing")


def scheduled(
    text: str, *, keep_inputs: bool = False, backends: tuple[Backend, ...] = ()
) -> Schedule:
    groups = [(one,) for one in backends or (backend("c"),)]
    partitioner = Partitioner(groups, Request(HOST.target))
    return schedule(parse(text), HOST, partitioner, prefix="net", keep_inputs=keep_inputs)


def planned(plan: Schedule) -> arena.Plan:
    layout = arena.plan(plan.problem)
    arena.validate(plan.problem, layout)
    return layout


def buffer(plan: Schedule, name: str) -> arena.Buffer:
    (found,) = [b for b in plan.problem.buffers if b.name == name]
    return found


def in_place(plan: Schedule) -> set[tuple[str, str]]:
    return {(pair.input, pair.output) for pair in plan.problem.in_place}


CHAIN = """
    input %x: f32[4]
    %a: f32[4] = Unary(%x) {kind="neg"} from NEG #0 "a"
    %b: f32[4] = Unary(%a) {kind="abs"} from ABS #1 "b"
    output %b
    """


# --- lifetimes and buffers in place ----------------------------------------------------------


def test_lifetimes_of_a_chain() -> None:
    plan = scheduled(CHAIN)
    lifetimes = {b.name: (b.size, b.start, b.end) for b in plan.problem.buffers}
    assert lifetimes == {"x": (16, 0, 1), "a": (16, 0, 2), "b": (16, 1, 3)}
    assert in_place(plan) == {("x", "a"), ("a", "b")}
    assert planned(plan).bytes == 16


def test_kept_inputs_live_to_the_end() -> None:
    plan = scheduled(CHAIN, keep_inputs=True)
    assert buffer(plan, "x").end == 3
    assert in_place(plan) == {("a", "b")}
    assert planned(plan).bytes == 32


def test_operands_that_are_read_again_are_not_overwritten() -> None:
    plan = scheduled(
        """
        input %x: f32[4]
        %a: f32[4] = Unary(%x) {kind="neg"} from NEG #0 "a"
        %b: f32[4] = Unary(%a) {kind="abs"} from ABS #1 "b"
        %c: f32[4] = Binary(%a, %b) {kind="add"} from ADD #2 "c"
        output %c
        """
    )
    assert in_place(plan) == {("x", "a"), ("a", "c"), ("b", "c")}
    assert planned(plan).bytes == 32


def test_an_input_that_is_an_output_is_not_overwritten() -> None:
    plan = scheduled(
        """
        input %x: f32[4]
        %a: f32[4] = Unary(%x) {kind="neg"} from NEG #0 "a"
        output %a
        output %x
        """
    )
    assert buffer(plan, "x").end == buffer(plan, "a").end == 2
    assert in_place(plan) == set()
    assert planned(plan).bytes == 32


def test_an_intermediate_output_is_not_overwritten() -> None:
    plan = scheduled(CHAIN.replace("output %b", "output %b\n    output %a"))
    assert buffer(plan, "a").end == 3
    assert in_place(plan) == {("x", "a")}


def test_unused_inputs_do_not_share_bytes_with_other_inputs() -> None:
    """All inputs are written before the first step, so none may share bytes with another."""
    plan = scheduled(CHAIN.replace("input %x", "input %z: f32[100]\n    input %x"))
    assert (buffer(plan, "z").start, buffer(plan, "z").end) == (0, 1)
    assert planned(plan).bytes >= 400 + 16


def test_operands_of_another_size_are_not_overwritten() -> None:
    plan = scheduled(
        """
        input %x: f32[1,4]
        input %z: f32[3,4]
        %y: f32[3,4] = Binary(%x, %z) {kind="add"} from ADD #0 "y"
        output %y
        """
    )
    assert in_place(plan) == {("z", "y")}


def test_reshaped_values_share_their_buffer() -> None:
    plan = scheduled(
        """
        input %x: f32[2,2]
        %f: f32[4] = Reshape(%x) {shape=(4)} from RESHAPE #0 "f"
        %a: f32[4] = Unary(%f) {kind="neg"} from NEG #1 "a"
        %g: f32[2,2] = Reshape(%a) {shape=(2, 2)} from RESHAPE #2 "g"
        %b: f32[2,2] = Binary(%g, %x) {kind="add"} from ADD #3 "b"
        output %b
        output %f
        """
    )
    names = {value.name: place for value, place in plan.storage.items()}
    assert names == {"x": "x", "f": "x", "a": "a", "g": "a", "b": "b"}
    assert [step.node.op.name for step in plan.steps] == ["Unary(neg)", "Binary(add)"]
    assert buffer(plan, "x").end == 3
    assert in_place(plan) == {("a", "b")}


def test_state_has_its_own_memory() -> None:
    plan = scheduled(
        """
        input %x: f32[4]
        state %s: f32[4] = [1.0, 2.0, 3.0, 4.0]
        %t: f32[4] = Binary(%s, %x) {kind="add"} from ADD #0 "t"
        %y: f32[4] = Unary(%t) {kind="neg"} from NEG #1 "y"
        next %s = %t
        output %y
        """
    )
    assert {b.name: b.memory for b in plan.problem.buffers} == {
        "x": ARENA,
        "s": STATE,
        "t": ARENA,
        "y": ARENA,
    }
    assert (buffer(plan, "s").start, buffer(plan, "s").end) == (0, 3)
    assert buffer(plan, "t").end == 3  # the next state is copied after the last step
    assert in_place(plan) == {("x", "t")}
    ((state, name),) = plan.initial_states.items()
    assert state.name == "s"
    np.testing.assert_array_equal(plan.constants[name], [1, 2, 3, 4])


# --- functions and constants -----------------------------------------------------------------


def test_equal_specializations_share_a_function() -> None:
    plan = scheduled(
        """
        input %x: f32[4]
        %a: f32[4] = Unary(%x) {kind="neg"} from NEG #0 "a"
        %b: f32[4] = Unary(%a) {kind="neg"} from NEG #1 "b"
        %c: f32[2,2] = Reshape(%b) {shape=(2, 2)} from RESHAPE #2 "c"
        %d: f32[2,2] = Unary(%c) {kind="abs"} from ABS #3 "d"
        output %d
        """
    )
    first, second, third = (step.function for step in plan.calls)
    assert first == second != third
    assert [f.name for f in plan.functions] == [first, third]
    assert plan.functions[0].users == ("NEG #0 'a'", "NEG #1 'b'")
    assert all(f.name.startswith("net_") and f.name in f.definition for f in plan.functions)


def test_equal_constants_are_stored_once() -> None:
    plan = scheduled(
        """
        input %x: f32[2]
        const %k: f32[2] = [1.0, 2.0]
        const %same: f32[2] = [1.0, 2.0]
        %a: f32[2] = Binary(%x, %k) {kind="add"} from ADD #0 "a"
        %b: f32[2] = Binary(%a, %same) {kind="mul"} from MUL #1 "b"
        output %b
        """
    )
    flash = [a.constant for step in plan.calls for a in step.arguments if isinstance(a, InFlash)]
    assert len(flash) == 2
    assert flash[0] == flash[1]
    assert list(plan.constants) == [flash[0]]


def test_constants_of_different_types_are_stored_separately() -> None:
    """1.0f and 0x3f800000 have the same bytes."""
    plan = scheduled(
        """
        input %x: f32[2]
        state %s: i32[2] = [1065353216, 1065353216]
        const %k: f32[2] = [1.0, 1.0]
        %a: f32[2] = Binary(%x, %k) {kind="add"} from ADD #0 "a"
        output %a
        next %s = %s
        """
    )
    kinds = sorted(array.dtype.name for array in plan.constants.values())
    assert kinds == ["float32", "int32"]


# --- choosing kernels ------------------------------------------------------------------------


class Picky(Kernel):
    """A kernel that serves only `abs`, with backend c's function and additional scratch."""

    op = Unary

    def __init__(self) -> None:
        (self.other,) = [k for k in backend("c").kernels if k.op is Unary]

    def offer(self, node: Node, request: Request) -> KernelCall | Refusal:
        if node.op != Unary("abs"):
            return Refusal(f"{node.op.name} is beneath me.")
        call = self.other.offer(node, request)
        assert isinstance(call, KernelCall)
        operands = (*call.operands, Scratch("spare", DType.INT32, 25))
        return KernelCall(call.template, "picky", call.parameters, operands)


class Recording(Kernel):
    """A kernel that refuses every node and records the names of node and target."""

    op = Unary
    asked: ClassVar[list[tuple[str, str]]] = []

    def offer(self, node: Node, request: Request) -> KernelCall | Refusal:
        self.asked.append((node.name, request.target.name))
        return Refusal("Not today.")


def test_backends_are_asked_in_order_and_reasons_are_kept() -> None:
    Recording.asked.clear()
    plan = scheduled(CHAIN, backends=(Backend("picky", (Recording(),)), backend("c")))
    assert Recording.asked == [("a", "host"), ("b", "host")]
    assert [(step.backend, step.reason) for step in plan.calls] == [("c", "Not today.")] * 2


def test_the_error_names_a_node_that_no_backend_serves() -> None:
    with pytest.raises(UnsupportedError) as caught:
        scheduled(CHAIN, backends=(Backend("a", (Recording(),)), Backend("b", ())))
    message = str(caught.value)
    for part in ("Unary(neg) of NEG #0 'a'", "'host'", "Not today.", "backend 'b' has no kernel"):
        assert part in message


def test_scratch_lives_during_its_step() -> None:
    plan = scheduled(CHAIN, backends=(Backend("picky", (Picky(),)), backend("c")))
    assert [step.backend for step in plan.calls] == ["c", "picky"]
    assert plan.calls[0].reason == "Unary(neg) is beneath me."
    spare = buffer(plan, "step1 spare")
    assert (spare.size, spare.start, spare.end) == (100, 1, 2)
    last = plan.calls[1].arguments[-1]
    assert last == InBuffer("step1 spare", DType.INT32, constant=False)
    assert planned(plan).bytes >= 16 + 16 + 100
    assert "int32_t *spare" in plan.functions[1].signature


# --- memories --------------------------------------------------------------------------------


def test_a_board_limits_the_arena() -> None:
    """The arena cannot use the part of the memory that the stack needs."""
    artifact = compile_model(DIGITS / "digits_int8.tflite", Options(board="microbit"))
    (memory,) = [m for m in artifact.schedule.problem.memories if m.name == ARENA]
    assert memory.size is not None
    assert memory.size <= 16 * 1024 - 2 * 1024
    free = compile_model(DIGITS / "digits_int8.tflite", Options(target="cortex-m0"))
    assert [m.size for m in free.schedule.problem.memories] == [None]


def test_the_error_lists_the_largest_tensors_that_do_not_fit() -> None:
    board = Options(board="microbit")
    graph = parse(
        """
        input %x: f32[3000]
        input %z: f32[2000]
        %y: f32[3000] = Unary(%x) {kind="neg"} from NEG #0 "y"
        output %y
        output %x
        output %z
        """
    )
    with pytest.raises(DoesNotFit, match="arena") as caught:
        compile_graph(graph, board)
    assert caught.value.largest[:2] == (("x", 12000), ("y", 12000))
    assert caught.value.needed == 32_000


def test_buffers_have_the_alignment_of_the_target() -> None:
    plan = scheduled(CHAIN)
    assert plan.alignment == HOST.target.alignment
    assert all(b.alignment == plan.alignment for b in plan.problem.buffers)
    assert library_platform(get("cortex-m0")).target.alignment % 4 == 0
