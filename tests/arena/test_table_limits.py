"""Tests of the limits on tables that kernels compute from sizes, for a layer and a network."""

from __future__ import annotations

import pytest

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.codegen.backends.c.pool import PoolParameters
from smelt.codegen.lower.kernel import MOST_ENTRIES
from smelt.errors import UnsupportedError
from smelt.frontend import Imported
from smelt.ir import DType, Graph, Node, Op, Origin, TensorType, Value
from smelt.ops.core.pool import Pool2D
from smelt.ops.tensor.pad import Pad
from smelt.ops.tensor.resize import Resize


def network(shape: tuple[int, ...], *ops: Op) -> Imported:
    values, nodes = [Value("x", TensorType(shape, DType.FLOAT32))], list[Node]()
    for index, op in enumerate(ops):
        (type_,) = op.infer([values[-1].type])
        values.append(Value(f"y{index}", type_))
        origin = Origin(op.name, index, f"y{index}")
        nodes.append(Node(op, (values[-2],), (values[-1],), origin))
    return Imported(Graph("net", (values[0],), (values[-1],), tuple(nodes)))


WIDTH = 10**8


@pytest.mark.parametrize("target", ["host", "cortex-m4", "vulkan"])
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap", "symmetric"])
def test_very_wide_padding_is_refused(mode: str, target: str) -> None:
    with pytest.raises(
        UnsupportedError,
        match=rf"Pad of Pad #0 'y0'.* tables of 200,000,004 entries, but a network "
        rf"may have {MOST_ENTRIES:,}.*: make its output smaller",
    ):
        compile_model(network((4,), Pad(((WIDTH, WIDTH),), mode=mode)), Options(target=target))


@pytest.mark.parametrize("target", ["host", "vulkan"])
@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
def test_a_very_wide_image_is_refused(kind: str, target: str) -> None:
    op = Resize(kind, (4, 2**23))
    with pytest.raises(UnsupportedError, match=r"Resize.* needs tables of [\d,]{9,} entries"):
        compile_model(network((1, 4, 4, 1), op), Options(target=target))


def test_table_entries_of_all_layers_are_added_up() -> None:
    """Each table is below the limit; their sum is not."""
    ops = [Pad(((2**18, index),), mode="edge") for index in range(8)]
    with pytest.raises(
        UnsupportedError, match=r"network may have [\d,]+, [\d,]{9} of which other layers use"
    ):
        compile_model(network((4,), *ops))
    compile_model(network((4,), *ops[:4]))


def test_the_columns_of_a_wide_window_are_not_unrolled() -> None:
    """The code loops over the columns of the window, so it is as long as for a narrow window."""
    wide = 1 << 20
    op = Pool2D("max", (1, wide), (1, 1), ((0, 0), (0, wide - 1)))
    (call,) = compile_model(network((1, 1, 40, 1), op)).schedule.calls
    parameters = call.call.parameters
    assert isinstance(parameters, PoolParameters)
    assert parameters.blocks
    assert all(len(block.steps) < 10 for block in parameters.blocks)
