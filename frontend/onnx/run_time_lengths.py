"""Checks that a file describes the same network at every size that is known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from smelt.errors import ConfigError, GraphError, ModelError, UnsupportedError
from smelt.ir import Graph, Node, TensorType, evaluate
from smelt.ir.budget import unlimited
from smelt.ir.text import print_graph
from smelt.ops.case import random_array
from smelt.ops.run_time_lengths import at_sizes, find_marks, remedy

_MOST_EFFORT, _MOST_HELD = 1 << 30, 1 << 28
"""Largest elementary operations, and bytes of values, of a network that is evaluated here."""

Import = Callable[[Mapping[str, int]], Graph]
"""Imports a file with other sizes of dimensions, by their names."""


def checked(graph: Graph, at: Import) -> Graph:
    """Return the graph, after checking that its lengths may have every size in their ranges.

    Args:
        graph: the graph of the largest sizes, as imported.
        at: imports the same file at other sizes.

    Raises:
        UnsupportedError: the network depends on a size; names the dimension and the remedy.
    """
    if not graph.lengths:
        return graph
    find_marks(graph)
    for sizes in _probes(graph):
        try:
            probe = at(sizes)
        except (ConfigError, ModelError, UnsupportedError) as error:
            raise _refused(graph, f"with {_text(sizes)}, {error}") from error
        require_same(graph, probe)
    return graph


def require_same(graph: Graph, probe: Graph) -> None:
    """Check that a graph, resized to other sizes, equals the file imported at these sizes.

    Numbers that a file computes from a size (a mean's divisor, a table of positions) are constants
    in a graph. They have the values for the largest size, which would be wrong at another size. At
    the smallest size, a file may be imported differently, because an axis has a single element or
    a part is the whole. There it is enough that the results are equal.

    Args:
        graph: the graph of the largest sizes, as imported.
        probe: the same file imported at other sizes.

    Raises:
        UnsupportedError: they differ.
    """
    sizes = {
        length.name: probe.inputs[length.axes[0][0]].type.shape[length.axes[0][1]]
        for length in graph.lengths
    }
    try:
        made, _ = at_sizes(graph, sizes)
    except GraphError as error:
        raise _refused(graph, f"with {_text(sizes)}, {error}") from error
    other = replace(probe, name=made.name, lengths=())
    if print_graph(made) == print_graph(other):
        return
    least = any(sizes[length.name] == length.minimum for length in graph.lengths)
    if least and _compute_the_same(made, other):
        return
    raise _refused(
        graph,
        f"the network computes with the size itself, as in {_first_difference(made, other)}",
    )


def _probes(graph: Graph) -> Iterator[dict[str, int]]:
    """Yield sizes of all lengths to try: just below the largest, and the smallest.

    Just below the largest, axes rarely have a single element. The distances from the largest size
    differ, so that lengths cannot be confused.
    """
    lengths = graph.lengths
    below = {x.name: max(x.minimum, x.maximum - 1 - i) for i, x in enumerate(lengths)}
    least = {x.name: x.minimum for x in lengths}
    yield below
    if least != below:
        yield least


def _compute_the_same(a: Graph, b: Graph) -> bool:
    if [v.type for v in (*a.inputs, *a.outputs)] != [v.type for v in (*b.inputs, *b.outputs)]:
        return False
    if not (_is_light(a) and _is_light(b)):
        return False
    inputs = [random_array(value.type, np.random.default_rng(0)) for value in a.inputs]
    # Both networks run as on a device; none of this is computing constants at compile time.
    with unlimited():
        return all(
            np.allclose(x, y, 1e-5, 1e-6, equal_nan=True)
            for x, y in zip(evaluate(a, inputs).outputs, evaluate(b, inputs).outputs, strict=True)
        )


def _is_light(graph: Graph) -> bool:
    """Return whether an evaluation takes at most moments, and not too much memory."""
    held = sum(value.type.bytes for value in graph.values())
    return graph.effort is not None and graph.effort <= _MOST_EFFORT and held <= _MOST_HELD


def _first_difference(a: Graph, b: Graph) -> str:
    """Return the first operator of the file at which two graphs differ."""
    for one, other in zip(a.nodes, b.nodes, strict=False):
        if (one.op, _operands(one)) != (other.op, _operands(other)):
            return str(one.origin)
    return "their results"


def _operands(node: Node) -> list[tuple[TensorType, bytes] | None]:
    """Return the operands' types, and the bytes of constant operands."""
    return [
        None if v is None else (v.type, b"" if v.data is None else v.data.tobytes())
        for v in node.inputs
    ]


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _refused(graph: Graph, reason: str) -> UnsupportedError:
    names = " and ".join(f"'{length.name}'" for length in graph.lengths)
    return UnsupportedError(
        f"dimension {names} cannot have a size known only at run time: {reason}; "
        f"{' and '.join(remedy(length) for length in graph.lengths)}"
    )
