"""Build a float ONNX network step by step; onnxruntime computes each step's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as refusals  # pyright: ignore[reportAttributeAccessIssue]

from smelt.ir import Array
from tests.differential.recipe import Draw, UnfitError
from tests.support.onnx_networks import graph, model, session, tensor_info

LARGEST = 3000
"""Most elements of a computed tensor."""
LARGEST_NUMBER = 1e5
REFUSALS = (
    *(refusals.Fail, refusals.InvalidArgument, refusals.InvalidGraph, refusals.NotImplemented),
    refusals.RuntimeException,
)
"""Errors of onnxruntime for nodes that it cannot run: there is nothing to compare with."""
onnxruntime.set_default_logger_severity(4)  # it logs these errors as well
_KINDS = {"float32": "f", "int64": "l", "int32": "i", "bool": "b", "int8": "i8", "uint8": "u8"}


@dataclass
class OnnxBuilder:
    """Nodes and constants of a network, and each tensor's values for each sample.

    Attributes:
        draw: random choices for the current step.
    """

    draw: Draw
    inputs: list[str] = field(default_factory=list[str])
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    reals: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])
    names: int = 0

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def shape(self, name: str) -> tuple[int, ...]:
        array = self.constants[name] if name in self.constants else self.reals[name][0]
        return tuple(array.shape)

    def input(self, arrays: Sequence[Array]) -> str:
        """Add a network input with these samples."""
        name = self.name("x")
        self.inputs.append(name)
        self.reals[name] = list(arrays)
        return name

    def const(self, data: Any, dtype: type = np.float32) -> str:
        """Add a constant."""
        name = self.name("k")
        self.constants[name] = np.asarray(data, dtype)
        return name

    def add(self, kind: str, *inputs: str, count: int = 1, **attributes: Any) -> str:
        """Append a node; return the name of its first output. `_` is an absent input.

        Raises:
            UnfitError: the results are too large or not finite, or onnxruntime refuses the node.
        """
        outputs = [self.name("v") for _ in range(count)]
        names = ["" if name == "_" else name for name in inputs]
        node = helper.make_node(kind, names, outputs, **attributes)
        results = self._run(node)
        for arrays in results:
            _require_fit(kind, arrays)
        self.reals |= zip(outputs, results, strict=True)
        self.nodes.append(node)
        return outputs[0]

    def _run(self, node: onnx.NodeProto) -> list[list[Array]]:
        """Compute the node's results, by output and sample."""
        try:
            return run_nodes([node], self.constants, self.reals, list(node.output))
        except REFUSALS as error:
            raise UnfitError(f"onnxruntime refuses {node.op_type}: {error}") from error

    def images(self) -> list[str]:
        """Return the computed tensors with 4 dimensions."""
        return self.of_rank(4)

    def of_rank(self, *ranks: int) -> list[str]:
        return [name for name in self.reals if len(self.shape(name)) in ranks]

    def pick(self, names: Sequence[str]) -> str:
        """Return one of the tensors; raise `UnfitError` if there is none."""
        if not names:
            raise UnfitError("no tensor of that rank")
        return self.draw.recent(names)

    def outputs(self) -> list[str]:
        """Return the tensors that no node reads, and sometimes one that a node reads."""
        used = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        ends = [name for name in made if name not in used]
        if made and self.draw.chance(0.2):
            ends.append(self.draw.pick(made))
        return list(dict.fromkeys(ends))

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        return proto_of(self.nodes, self.constants, self.inputs, outputs, self.reals)


def run_nodes(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Array],
    reals: dict[str, list[Array]],
    outputs: Sequence[str],
) -> list[list[Array]]:
    """Run nodes with known operands in onnxruntime; return results by output and sample."""
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(n for node in nodes for n in node.input if n and n not in made)
    fed = [name for name in read if name not in constants]
    proto = proto_of(nodes, constants, fed, outputs, reals)
    runtime = session(proto)
    results = [
        runtime.run(None, {name: reals[name][i] for name in fed})
        for i in range(len(next(iter(reals.values()))))
    ]
    return [list(arrays) for arrays in zip(*results, strict=True)]


def proto_of(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Array],
    inputs: Sequence[str],
    outputs: Sequence[str],
    reals: dict[str, list[Array]],
) -> onnx.ModelProto:
    """Return a model of these nodes, with the constants that they read."""
    used = {name for node in nodes for name in node.input}
    infos = [
        tensor_info(name, reals[name][0].shape, _KINDS[reals[name][0].dtype.name])
        for name in inputs
    ]
    ends: str | list[onnx.ValueInfoProto] = [
        tensor_info(name, reals[name][0].shape, _KINDS[reals[name][0].dtype.name])
        if name in reals
        else onnx.ValueInfoProto(name=name)
        for name in outputs
    ]
    kept = {name: array for name, array in constants.items() if name in used}
    return model(graph(nodes, infos, ends, kept))


def _require_fit(kind: str, arrays: Sequence[Array]) -> None:
    shape = arrays[0].shape
    if arrays[0].size > LARGEST or arrays[0].size == 0 or len(shape) > 6:
        raise UnfitError(f"{kind} makes {shape}")
    for array in arrays:
        if array.dtype.kind == "f" and not (np.abs(array) < LARGEST_NUMBER).all():
            raise UnfitError(f"{kind} makes numbers that are too large")
