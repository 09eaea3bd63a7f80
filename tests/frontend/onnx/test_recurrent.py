"""LSTM, GRU and RNN of ONNX files in many configurations, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array
from smelt.ops.sequence.recurrence import GATE_DEFAULTS
from tests.support.graphs import SETUPS, Member, assert_same, run_together
from tests.support.onnx_networks import agrees, graph, model, session

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
NAMES = {
    "affine": "Affine",
    "elu": "Elu",
    "hardsigmoid": "HardSigmoid",
    "leakyrelu": "LeakyRelu",
    "relu": "Relu",
    "scaledtanh": "ScaledTanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
    "thresholdedrelu": "ThresholdedRelu",
}
NO_COMMON_DEFAULT = ("affine", "scaledtanh", "thresholdedrelu")
"""Activations for which the standard and ONNX Runtime have no common default constants."""


@dataclass(frozen=True)
class Network:
    """A network of one recurrent layer, and the values of its inputs."""

    name: str
    proto: onnx.ModelProto
    feeds: dict[str, Array]

    def __str__(self) -> str:
        return self.name


def network(
    kind: str,
    number: int,
    *,
    steps: int = 5,
    batch: int = 2,
    inputs: int = 3,
    units: int = 4,
    direction: str = "forward",
    given: str = "B",
    computed: str = "",
    outputs: str = "Y Y_h Y_c",
    lengths: tuple[int, ...] = (),
    **attributes: Any,
) -> Network:
    """Return a network of one recurrent layer.

    Args:
        kind: LSTM, GRU or RNN.
        number: seed of the weights, and part of the network's name.
        steps: length of the sequence.
        batch: number of sequences.
        inputs: elements of a step.
        units: hidden units.
        direction: ONNX attribute.
        given: names of the optional operands that are constants.
        computed: names of the operands that are inputs of the network.
        outputs: names of the outputs that the network has.
        lengths: length of each sequence, an optional operand.
        attributes: other ONNX attributes.
    """
    rng = np.random.default_rng(number)
    directions, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    batch_first = bool(attributes.get("layout"))
    state = (batch, directions, units) if batch_first else (directions, batch, units)
    shapes: dict[str, tuple[int, ...]] = {
        "X": (batch, steps, inputs) if batch_first else (steps, batch, inputs),
        "W": (directions, gates * units, inputs),
        "R": (directions, gates * units, units),
        "B": (directions, 2 * gates * units),
        "L": (batch,),
        "H": state,
        "C": state,
        "P": (directions, 3 * units),
    }
    present = ["X", "W", "R", *given.split(), *computed.split(), *(["L"] if lengths else [])]
    arrays: dict[str, Array] = {
        n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in shapes.items() if n in present
    }
    if lengths:
        arrays["L"] = np.asarray(lengths, np.int32)
    names = list(shapes)[: 8 if kind == "LSTM" else 6]
    chosen = [n if n in outputs.split() else "" for n in ("Y", "Y_h", "Y_c")]
    layer = helper.make_node(
        kind,
        [n if n in arrays else "" for n in names],
        chosen[: 3 if kind == "LSTM" else 2],
        hidden_size=units,
        direction=direction,
        **attributes,
    )
    fed = {"X", *computed.split()}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in arrays.items()
        if n in fed
    ]
    constants = {n: a for n, a in arrays.items() if n not in fed}
    built = graph([layer], infos, " ".join(n for n in layer.output if n), constants)
    label = f"{kind.lower()}{number}"
    return Network(label, model(built, 22), {n: a for n, a in arrays.items() if n in fed})


def some_activations(kind: str, number: int, directions: int) -> dict[str, Any]:
    """Return activations for all gates, with alpha and beta for each (ignored by most)."""
    names = sorted(GATE_DEFAULTS)
    chosen = [names[(number * 5 + i * 3) % len(names)] for i in range(FUNCTIONS[kind] * directions)]
    count = len(chosen)
    return {
        "activations": [NAMES[n] for n in chosen],
        "activation_alpha": [0.4 + 0.1 * i for i in range(count)],
        "activation_beta": [0.3 + 0.1 * i for i in range(count)],
    }


def configurations() -> list[Network]:
    """Return networks that together use every attribute and operand, alone and combined."""
    found: list[Network] = []
    for kind in GATES:
        states = "B H C" if kind == "LSTM" else "B H"

        def add(kind: str = kind, **settings: Any) -> None:
            found.append(network(kind, len(found), **settings))

        add(given="")
        add(given=states, batch=1, units=9)
        add(given=states, batch=3, steps=1, units=17)
        add(given=states, direction="reverse")
        add(given=states, direction="bidirectional")
        add(given=states, direction="bidirectional", lengths=(2, 5), steps=5)
        add(given=states, direction="reverse", lengths=(3, 5))
        add(given="B", lengths=(5, 1), computed="L H")
        add(given="", computed="W R B H", direction="bidirectional")
        add(given=states, clip=0.3)
        add(outputs="Y_h")
        add(outputs="Y")
        for direction in ("forward", "bidirectional"):
            directions = 2 if direction == "bidirectional" else 1
            settings = some_activations(kind, len(found), directions)
            add(direction=direction, given=states, **settings)
    for after in (0, 1):
        common: dict[str, Any] = {"linear_before_reset": after, "given": "B H"}
        found.append(network("GRU", len(found), direction="bidirectional", **common))
        found.append(network("GRU", len(found), clip=0.4, **common))
        found.append(network("GRU", len(found), computed="B", **common))
        found.append(network("GRU", len(found), units=19, **common))
    further: tuple[dict[str, Any], ...] = (
        {},
        {"input_forget": 1},
        {"clip": 0.5},
        {"direction": "bidirectional"},
    )
    for attributes in further:
        for units in (4, 19):
            found.append(network("LSTM", len(found), given="B H C P", units=units, **attributes))
    for number, name in enumerate(sorted(NAMES)):
        constants: dict[str, Any] = {"activation_alpha": [0.3], "activation_beta": [0.2]}
        found.append(
            network(
                "RNN", 100 + number, given="B H", units=9, activations=[NAMES[name]], **constants
            )
        )
        if name not in NO_COMMON_DEFAULT:
            found.append(network("RNN", 200 + number, activations=[NAMES[name]]))
    return found


CONFIGURATIONS = configurations()


@pytest.mark.parametrize("layer", CONFIGURATIONS, ids=str)
def test_references_agree_with_onnxruntime(layer: Network) -> None:
    agrees(layer.proto, layer.feeds)


@pytest.mark.thorough
@pytest.mark.parametrize("setup", ["host", pytest.param("m4", marks=pytest.mark.qemu)])
def test_generated_code_agrees_with_onnxruntime(setup: str) -> None:
    graphs = [load(layer.proto.SerializeToString(), layer.name).graph for layer in CONFIGURATIONS]
    members = [
        Member(g, [tuple(layer.feeds[v.name] for v in g.inputs)])
        for g, layer in zip(graphs, CONFIGURATIONS, strict=True)
    ]
    results = run_together(members, SETUPS[setup])
    for layer, found in zip(CONFIGURATIONS, results, strict=True):
        expected = tuple(session(layer.proto).run(None, layer.feeds))
        assert_same(found, [expected], f"{layer} on {setup}")


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("kind", GATES)
def test_layout_1_equals_layout_0_with_transposed_operands(kind: str) -> None:
    """ONNX Runtime does not support layout 1, so compare with its results for layout 0."""
    last = network(kind, 1, direction="bidirectional", given="B H", layout=0)
    first = network(kind, 1, direction="bidirectional", given="B", computed="H", layout=1)
    hidden = next(t for t in last.proto.graph.initializer if t.name == "H")
    expected = session(last.proto).run(None, last.feeds)
    feeds = {
        "X": last.feeds["X"].transpose(1, 0, 2),
        "H": onnx.numpy_helper.to_array(hidden).transpose(1, 0, 2),
    }
    constants = {t.name: t for t in last.proto.graph.initializer}
    for tensor in first.proto.graph.initializer:
        tensor.CopyFrom(constants[tensor.name])
    imported = load(first.proto.SerializeToString(), "first").graph
    member = Member(imported, [tuple(feeds[v.name] for v in imported.inputs)])
    (found,) = run_together([member], SETUPS["host"])
    orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    moved = tuple(np.asarray(y).transpose(o) for y, o in zip(expected, orders, strict=False))
    assert_same(found, [moved], f"{kind}, batch first")


@pytest.mark.thorough
def test_single_steps_with_passed_states_equal_the_whole_sequence() -> None:
    """The final states of each step are the initial states of the next."""
    whole = network("LSTM", 7, given="B", computed="H C", steps=6, batch=1)
    step = network("LSTM", 7, given="B", computed="H C", steps=1, batch=1)
    for tensor, same in zip(
        step.proto.graph.initializer, whole.proto.graph.initializer, strict=True
    ):
        tensor.CopyFrom(same)
    expected = session(whole.proto).run(None, whole.feeds)
    imported = load(step.proto.SerializeToString(), "step").graph
    state = whole.feeds["H"], whole.feeds["C"]
    for index in range(6):
        feeds = {"X": whole.feeds["X"][index : index + 1], "H": state[0], "C": state[1]}
        member = Member(imported, [tuple(feeds[v.name] for v in imported.inputs)])
        ((y, *state),) = run_together([member], SETUPS["host"])[0]
        assert_same([(y,)], [(expected[0][index : index + 1],)], f"step {index}")


def test_wrong_recurrent_layers_are_refused() -> None:
    wrong: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
        ({"direction": "sideways"}, ModelError, "direction 'sideways'"),
        ({"activations": ["Sigmoid"]}, ModelError, "it has 1 activations, but needs 3"),
        ({"activations": ["Sigmoid", "Tanh", "Affine"]}, UnsupportedError, "activation_alpha"),
        ({"activations": ["Sigmoid", "Tanh", "Sin"]}, UnsupportedError, "'sin' is not supported"),
    )
    for change, error, text in wrong:
        layer = network("LSTM", 3, **change)
        with pytest.raises(error, match=text):
            load(layer.proto.SerializeToString(), "broken")
