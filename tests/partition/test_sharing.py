"""Tests that layers share a body if it takes fewer bytes and hardly more instructions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from smelt.codegen.lower.kernel import (
    BodyCost,
    Input,
    KernelCall,
    LayerStruct,
    Output,
    Packed,
    Parameters,
    SharedBody,
)
from smelt.codegen.partition.candidates import Candidate, Choice
from smelt.codegen.partition.sharing import share
from smelt.ir import DType, Node, Origin, TensorType, Value
from smelt.ops.core.unary import Unary
from smelt.targets import Optimize


@dataclass(frozen=True)
class Body(Parameters):
    """Parameters of a template that no test renders."""

    count: int | None
    step: int = 1


def layer(
    count: int,
    slowdown: int,
    *,
    step: int = 1,
    cycles: int = 1000,
    shared_bytes: int = 500,
    family: str | None = None,
    inner_bytes: int = 0,
    constants: tuple[int, int] = (0, 0),
) -> tuple[Node, Choice]:
    """Return a layer of `count` elements and the choice of its kernel.

    Its own body executes 1,000 instructions, the shared body `slowdown` more. Only layers of equal
    `step` can share a body. `inner_bytes` of the own body's 300 bytes are a function that all
    layers call, and `constants` are the bytes of what the own and the shared body read.
    """
    type_ = TensorType((count,), DType.FLOAT32)
    node = Node(Unary("relu"), (Value("x", type_),), (Value("y", type_),), Origin("test", 0))
    tensors = Input(0, "input"), Output(0, "output")
    numbers = LayerStruct("layer", "relu", {"count": count})
    operands = (*tensors, packed(constants[1]), numbers)
    shared = SharedBody(
        call=KernelCall("relu.j2", "relu", Body(None, step), operands),
        cost=BodyCost(1000 + slowdown, shared_bytes),
        specialized=BodyCost(1000, 300, {"inner": inner_bytes}),
        family=family,
    )
    own = KernelCall(
        template="relu.j2",
        stem="relu",
        parameters=Body(count, step),
        operands=(*tensors, packed(constants[0])),
        form="relu",
        work={"calls": 1},
        shared=shared,
    )
    return node, Choice(Candidate("one", own, cycles), reason="Nothing else serves it.")


def packed(count: int) -> Packed:
    return Packed("weights", np.zeros(count, np.int8))


def alone(parameters: Body, constants: int = 0) -> tuple[Node, Choice]:
    """Return a layer that can share nothing, and the choice of its kernel."""
    node, choice = layer(9, 0)
    call = KernelCall("relu.j2", "relu", parameters, (packed(constants),), form="relu")
    return node, replace(choice, taken=replace(choice.taken, call=call))


def shares(layers: list[tuple[Node, Choice]], optimize: Optimize) -> list[bool]:
    """Return for each layer whether it calls the shared body."""
    found = share(dict(layers), optimize)
    assert list(found) == [node for node, _ in layers]
    calls = [found[node].taken.call for node, _ in layers]
    assert all((call.form, call.work) == ("relu", {"calls": 1}) for call in calls)
    return [any(isinstance(o, LayerStruct) for o in call.operands) for call in calls]


def test_a_layer_keeps_its_body_if_sharing_slows_it_by_one_percent() -> None:
    layers = [layer(4, 9), layer(5, 10), layer(6, 9)]
    assert shares(layers, "speed") == [True, False, True]
    assert shares(layers, "size") == [True, True, True]
    assert shares([layer(4, 9), layer(5, 9), layer(6, 9)], "speed") == [True, True, True]


@pytest.mark.parametrize("optimize", ["speed", "size", "ram"])
def test_layers_share_only_where_that_takes_fewer_bytes(optimize: Optimize) -> None:
    # Two own bodies take 600 bytes; the shared one takes 500, and each layer's struct takes 4.
    assert shares([layer(4, 0), layer(5, 0)], optimize) == [True, True]
    large = [layer(4, 0, shared_bytes=592), layer(5, 0, shared_bytes=592)]
    assert shares(large, optimize) == [False, False]


def test_a_slower_layer_shares_if_its_cycles_are_negligible() -> None:
    small = layer(5, 30, cycles=10)
    assert shares([layer(4, 9), small, layer(6, 9, cycles=1000)], "speed") == [True, True, True]
    # Together, both slower layers would lose more than 0.1 % of all cycles. So only the one that
    # loses less shares.
    several = [layer(4, 9, cycles=1000), small, layer(6, 40, cycles=50), layer(7, 9)]
    assert shares(several, "speed") == [True, True, False, True]


def test_a_body_of_one_layer_does_not_count_towards_the_limit() -> None:
    layers = [layer(4, 9), layer(5, 30, cycles=50), layer(6, 9), layer(7, 30, step=2, cycles=40)]
    assert shares(layers, "speed") == [True, True, True, False]
    assert shares([*layers, layer(8, 30, cycles=40)], "speed") == [True, False, True, False, True]


def test_all_layers_of_a_family_share_its_longest_body() -> None:
    layers = [layer(4, 0, family="a"), layer(5, 0, family="a", shared_bytes=550)]
    found = share(dict(layers), "speed")
    longest = layers[1][1].taken.call.shared
    assert longest is not None
    assert {id(found[node].taken.call.parameters) for node, _ in layers} == {
        id(longest.call.parameters)
    }


def test_layers_that_need_too_large_a_body_keep_their_own() -> None:
    small = [layer(4, 0, family="a", shared_bytes=400), layer(5, 0, family="a", shared_bytes=410)]
    large = layer(6, 0, family="a", shared_bytes=900)
    assert shares([*small, large], "speed") == [True, True, False]
    many = [layer(count, 0, family="a", shared_bytes=400) for count in range(4, 9)]
    assert shares([large, *many], "speed") == [False] + [True] * 5
    wide = layer(9, 0, family="a", shared_bytes=600)
    assert shares([wide, *many], "speed") == [True] * 6


def test_a_function_that_other_layers_call_too_is_not_saved() -> None:
    layers = [layer(4, 0, inner_bytes=200), layer(5, 0, inner_bytes=200)]
    assert shares(layers, "speed") == [False, False]  # 200 + 2 * 100 bytes, not 2 * 300
    assert shares([*layers, layer(6, 0), layer(7, 0)], "speed") == [True] * 4
    slow = layer(8, 20, inner_bytes=200)
    few = [layer(n, 0, inner_bytes=200, shared_bytes=380) for n in (4, 5)]
    assert shares(few, "speed") == [True, True]
    assert shares([*few, slow], "speed") == [False, False, False]


def test_a_body_that_another_layer_calls_anyway_costs_nothing() -> None:
    sharer = layer(4, 0)
    assert shares([sharer], "speed") == [False]
    found = share(dict([sharer, alone(Body(None))]), "speed")
    assert found[sharer[0]] is not sharer[1]


def test_constants_that_only_one_body_reads_count() -> None:
    more, less = layer(4, 0, constants=(0, 300)), layer(4, 0, constants=(300, 0))
    assert shares([more], "speed") == [False]
    assert shares([less], "speed") == [True]
    # Another layer reads the same constants.
    for sharer, wanted in ((more, False), (less, False)):
        found = share(dict([sharer, alone(Body(9, 2), 300)]), "speed")
        assert (found[sharer[0]] is not sharer[1]) is wanted


def test_more_cycles_may_be_lost_where_ram_is_limited() -> None:
    layers = [layer(4, 9), layer(5, 20), layer(6, 9), layer(7, 9)]
    for little_ram in (False, True):
        found = share(dict(layers), "speed", little_ram=little_ram)
        assert (found[layers[1][0]].taken.call is not layers[1][1].taken.call) is little_ram


def test_equal_layers_need_no_struct() -> None:
    assert shares([layer(4, 0), layer(4, 0), layer(4, 0)], "size") == [False, False, False]


def test_a_single_layer_takes_the_shared_body_only_if_it_is_smaller() -> None:
    assert shares([layer(4, 0)], "size") == [False]
    assert shares([layer(4, 0, shared_bytes=200)], "size") == [True]
    assert shares([layer(4, 0, step=1), layer(4, 0, step=2)], "size") == [False, False]


def test_a_single_layer_does_not_take_a_smaller_body_that_is_slow() -> None:
    assert shares([layer(4, 10, shared_bytes=200)], "speed") == [False]
    assert shares([layer(4, 10, shared_bytes=200)], "size") == [True]
    # The lost cycles are negligible beside those of the other layer.
    layers = [layer(4, 10, shared_bytes=200, cycles=10), layer(5, 0, step=2)]
    assert shares(layers, "speed") == [True, False]
    choice = share(dict(layers), "speed")[layers[0][0]]
    assert choice.reason.endswith("Its code is smaller at an estimated 1.0% more instructions.")


def test_the_cycles_of_all_calls_of_a_layer_count() -> None:
    layers = [layer(4, 10, shared_bytes=200, cycles=10), layer(5, 0, step=2)]
    for count, slow in ((1, False), (100, True)):
        calls = {layers[0][0]: count}
        found = share(dict(layers), "speed", calls)[layers[0][0]]
        assert (found is layers[0][1]) is slow


def test_the_choice_says_what_sharing_costs() -> None:
    layers = [layer(4, 4), layer(5, 30), layer(6, 4)]
    reasons = [choice.reason for choice in share(dict(layers), "speed").values()]
    assert (
        reasons[::2]
        == [
            "Nothing else serves it. Shares its code with 1 other layer, "
            "at an estimated 0.4% more instructions."
        ]
        * 2
    )
    assert reasons[1] == (
        "Nothing else serves it. "
        "Code shared with other layers would take an estimated 3.0% more instructions."
    )
