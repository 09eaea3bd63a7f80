"""Float rewrites of the scores that softmax reads: factors and masks.

A factor of all scores moves into softmax's own factor (`beta`), so that scores are stored once.

A mask adds a number like -1e9 to scores that must be hidden, or replaces them by it. In int8, such
a number would leave no precision for the other scores. So masks are bounded to the smallest
magnitude that still makes the exponentials vanish; the samples determine it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from smelt.ir import Array, Graph, Node, Value, evaluate
from smelt.ops.arithmetic.fixed_point import Activation
from smelt.ops.core.binary import Binary
from smelt.ops.core.softmax import Softmax
from smelt.ops.tensor.select import Select
from smelt.samples import Sample

_HIDDEN = -30.0
"""Constants up to this value hide a score."""

_MARGIN = 10.0
"""Distance of hidden scores from the largest of their row: exp(-10) is less than 1/20000."""


@dataclass(frozen=True)
class _Scores:
    """What a softmax reads: `factor * x`, with a constant mask added or substituted.

    Attributes:
        softmax: the softmax node.
        x: the scores before factor and mask.
        scaled: node that multiplies by the factor, or None.
        factor: the factor.
        mask: node that adds or selects the mask, or None.
        hiding: index of the mask node's constant operand.
    """

    softmax: Node
    x: Value
    scaled: Node | None
    factor: float
    mask: Node | None
    hiding: int

    @property
    def beta(self) -> float:
        """Return the product of the factor and softmax's own."""
        own = self.softmax.op.beta if isinstance(self.softmax.op, Softmax) else 1.0
        return own * self.factor


def prepare_scores(graph: Graph, samples: Sequence[Sample]) -> Graph:
    """Move factors into softmax and bound masks, as the samples allow."""
    uses = Counter(v for node in graph.nodes for v in node.inputs if v is not None)
    uses.update(graph.results)
    softmaxes = (node for node in graph.nodes if isinstance(node.op, Softmax))
    found = {node: _scores(graph, node, uses) for node in softmaxes}
    found = {n: s for n, s in found.items() if s.scaled is not None or s.mask is not None}
    bounds = _bounds(graph, [s for s in found.values() if s.mask is not None], samples)
    gone = {node for scores in found.values() for node in (scores.scaled, scores.mask)}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node in found:
            nodes += _rewritten(found[node], bounds)
        elif node not in gone:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _scores(graph: Graph, softmax: Node, uses: Mapping[Value, int]) -> _Scores:
    def sole(value: Value) -> Node | None:
        return graph.producer.get(value) if uses[value] == 1 else None

    x, factor = softmax.input(0), 1.0
    mask = sole(x)
    hiding = None if mask is None else _mask_operand(mask)
    if mask is None or hiding is None:
        mask, hiding = None, 0
    else:
        x = mask.input(1 - hiding if isinstance(mask.op, Binary) else 3 - hiding)
    scaled = sole(x)
    found = None if scaled is None else _factor(scaled)
    if found is None:
        scaled = None
    else:
        x, factor = found
    return _Scores(softmax, x, scaled, factor, mask, hiding)


def _mask_operand(node: Node) -> int | None:
    """Return the index of the operand that is a mask constant, or None."""
    op = node.op
    if isinstance(op, Binary) and (op.kind, op.activation) == ("add", Activation.NONE):
        candidates = (0, 1)
    elif isinstance(op, Select):
        candidates = (1, 2)
    else:
        return None
    hiding = [i for i in candidates if (v := node.input(i)).data is not None and _masks(v).any()]
    others = [i for i in candidates if node.input(i).data is None]
    if len(hiding) != 1 or len(others) != 1:
        return None
    whole = node.input(others[0]).type.shape == node.output.type.shape
    scalar = isinstance(op, Binary) or node.input(hiding[0]).type.size == 1
    return hiding[0] if whole and scalar else None


def _masks(constant: Value) -> Array:
    return constant.array <= _HIDDEN


def _factor(node: Node) -> tuple[Value, float] | None:
    """Return the tensor and the positive constant that a node multiplies, or None."""
    op = node.op
    if not isinstance(op, Binary) or op.activation is not Activation.NONE:
        return None
    a, b = node.input(0), node.input(1)
    if op.kind == "mul" and a.data is not None:
        a, b = b, a
    if op.kind not in ("mul", "div") or a.data is not None or b.data is None or b.type.size != 1:
        return None
    number = float(b.array.ravel()[0])
    usable = np.isfinite(number) and number > 0 and a.type == node.output.type
    return (a, number if op.kind == "mul" else 1.0 / number) if usable else None


def _bounds(
    graph: Graph, masked: Sequence[_Scores], samples: Sequence[Sample]
) -> dict[Node, float]:
    """Return the bound of each softmax's mask, as exponents (including `beta`)."""
    bounds = {scores.softmax: np.inf for scores in masked}
    for sample in samples if masked else ():
        values = evaluate(graph, sample).values
        for scores in masked:
            found = _bound(scores, values)
            bounds[scores.softmax] = min(bounds[scores.softmax], found)
    return bounds


def _bound(scores: _Scores, values: Mapping[Value, Array]) -> float:
    """Return the bound for one sample."""
    node, softmax = scores.mask, scores.softmax
    if node is None or not isinstance(softmax.op, Softmax):
        raise ValueError(f"{softmax.origin} has no mask")
    exponents = values[softmax.input(0)].astype(np.float64) * softmax.op.beta
    constant = node.input(scores.hiding)
    if isinstance(node.op, Binary):
        hidden = np.broadcast_to(_masks(constant), exponents.shape)
    else:
        condition = node.input(0)
        chosen = values[condition] if condition.data is None else condition.array
        hidden = np.broadcast_to(chosen == (scores.hiding == 1), exponents.shape)
    most = np.where(hidden, -np.inf, exponents).max(axis=-1, keepdims=True)
    seen = np.isfinite(most)
    if not seen.any():
        return -_MARGIN
    if not isinstance(node.op, Binary):
        return float(most[seen].min()) - _MARGIN
    before = values[scores.x].astype(np.float64) * scores.beta - most
    excess = before[hidden & seen].max(initial=0.0)
    return -float(excess) - _MARGIN


def _rewritten(scores: _Scores, bounds: Mapping[Node, float]) -> list[Node]:
    softmax = replace(scores.softmax, op=Softmax(scores.beta))
    if scores.mask is None:
        return [replace(softmax, inputs=(scores.x,))]
    constant = scores.mask.input(scores.hiding)
    bound = bounds[scores.softmax] / scores.beta
    real = constant.array.astype(np.float64) / scores.factor
    bounded = np.where(_masks(constant), np.maximum(real, bound), real).astype(np.float32)
    inputs = list(scores.mask.inputs)
    inputs[scores.hiding] = Value.constant(f"{constant.name}:bounded", bounded)
    other = 1 - scores.hiding if isinstance(scores.mask.op, Binary) else 3 - scores.hiding
    inputs[other] = scores.x
    return [replace(scores.mask, inputs=tuple(inputs)), softmax]
