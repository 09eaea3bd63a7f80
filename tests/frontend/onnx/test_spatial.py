"""ONNX's spatial operators with random attributes, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from smelt.errors import ModelError, UnsupportedError
from smelt.frontend import load
from smelt.ir import Array
from smelt.ops.tensor.resample import Resample
from smelt.ops.tensor.resize import Resize
from tests.support.onnx_networks import agrees, graph, ints, model, node, tensor_info

SEEDS = range(40)


class Random:
    """Generator of small random numbers, arrays and choices."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high, endpoint=True))

    def numbers(self, count: int, low: int, high: int) -> list[int]:
        return [self.number(low, high) for _ in range(count)]

    def choice(self, *options: Any) -> Any:
        return options[self.number(0, len(options) - 1)]

    def array(self, *shape: int, low: float = -1, high: float = 1) -> Array:
        return self.rng.uniform(low, high, shape).astype(np.float32)


def assert_agrees(
    kind: str,
    operands: Mapping[str, Array | None],
    constants: str = "",
    opset: int = 18,
    **attributes: Any,
) -> None:
    """Assert that a network of one operator agrees with ONNX Runtime.

    Args:
        kind: the operator.
        operands: values by name, in the operator's order; None for an absent operand.
        constants: names of the operands that are constants, separated by spaces.
        opset: operator set.
        attributes: of the operator.
    """
    names = " ".join("_" if a is None else name for name, a in operands.items())
    given = {name: a for name, a in operands.items() if a is not None}
    fixed = {name: a for name, a in given.items() if name in constants.split()}
    fed = {name: a for name, a in given.items() if name not in fixed}
    kinds = {np.dtype(np.float32): "f", np.dtype(np.int64): "l", np.dtype(np.int8): "i8"}
    inputs = [tensor_info(n, a.shape, kinds[a.dtype]) for n, a in fed.items()]
    outputs = [tensor_info("y", None, kinds[next(iter(given.values())).dtype])]
    proto = graph([node(kind, names, "y", **attributes)], inputs, outputs, fixed)
    agrees(model(proto, opset), fed)


def window(r: Random, kernel: list[int], *, ceil: bool) -> dict[str, Any]:
    """Return random strides, dilations and padding (explicit, automatic or none).

    Pads are smaller than the kernel. With `ceil`, `ceil_mode` is also random.
    """
    rank = len(kernel)
    found: dict[str, Any] = {"strides": r.numbers(rank, 1, 3)}
    if ceil:
        found["ceil_mode"] = r.number(0, 1)
    match r.choice("pads", "auto", "none"):
        case "pads":
            found["dilations"] = r.numbers(rank, 1, 2)
            found["pads"] = [r.number(0, k - 1) for k in kernel * 2]
        case "auto":  # Here, ONNX Runtime does not support strides larger than the kernel.
            found["strides"] = [r.number(1, k) for k in kernel]
            found["auto_pad"] = r.choice("SAME_UPPER", "SAME_LOWER", "VALID")
        case _:
            found["dilations"] = r.numbers(rank, 1, 2)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_conv_agrees_with_onnxruntime(seed: int) -> None:
    r = Random(seed)
    rank, groups = r.number(1, 3), r.choice(1, 1, 2, 3)
    kernel, depth = r.numbers(rank, 1, 3), r.number(1, 3)
    channels, outputs = groups * depth, groups * r.number(1, 3)
    operands = {
        "x": r.array(r.number(1, 2), channels, *r.numbers(rank, 5, 8)),
        "w": r.array(outputs, depth, *kernel),
        "b": r.choice(None, r.array(outputs)),
    }
    assert_agrees(
        "Conv", operands, r.choice("", "w", "w b"), group=groups, **window(r, kernel, ceil=False)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_conv_transpose_agrees_with_onnxruntime(seed: int) -> None:
    r = Random(seed)
    rank, groups = r.number(1, 3), r.choice(1, 1, 2, 3)
    stride = r.numbers(rank, 1, 3)
    kernel, depth, size = (
        [s + r.number(0, 2) for s in stride],
        r.number(1, 3),
        r.numbers(rank, 1, 5),
    )
    outputs = r.number(1, 3)
    attributes: dict[str, Any] = {"strides": stride, "group": groups}
    match r.choice("pads", "padding", "shape", "auto"):
        case "pads":
            attributes["pads"] = [r.number(0, (k - 1) // 2) for k in kernel * 2]
            attributes["dilations"] = r.numbers(rank, 1, 2)
        case "padding":
            attributes["output_padding"] = [r.number(0, s - 1) for s in stride]
        case "shape" if rank < 3:
            attributes["output_shape"] = [n * s for n, s in zip(size, stride, strict=True)]
        case _:
            attributes["auto_pad"] = r.choice("SAME_UPPER", "SAME_LOWER", "VALID")
    operands = {
        "x": r.array(r.number(1, 2), groups * depth, *size),
        "w": r.array(groups * depth, outputs, *kernel),
        "b": r.choice(None, r.array(groups * outputs)),
    }
    assert_agrees("ConvTranspose", operands, r.choice("", "w", "w b"), **attributes)


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
def test_pools_agree_with_onnxruntime(kind: str, seed: int) -> None:
    r = Random(seed)
    rank = r.number(1, 3)
    kernel = r.numbers(rank, 1, 3)
    attributes = window(r, kernel, ceil=True)
    if kind == "AveragePool":
        attributes["count_include_pad"] = r.number(0, 1)
    if kind == "LpPool":
        attributes["p"] = r.choice(1, 2)
    x = r.array(r.number(1, 2), r.number(1, 5), *r.numbers(rank, 5, 8))
    if kind == "MaxPool" and r.number(0, 3) == 0:
        x = (x * 100).astype(np.int8)
    assert_agrees(kind, {"x": x}, opset=19, kernel_shape=kernel, **attributes)


@pytest.mark.parametrize("seed", SEEDS)
def test_indices_of_max_pool_agree_with_onnxruntime(seed: int) -> None:
    r = Random(seed)
    rank = r.number(1, 3)
    kernel = r.numbers(rank, 1, 3)
    attributes = window(r, kernel, ceil=True)
    if rank > 1:
        attributes["storage_order"] = r.number(0, 1)
    x = r.array(r.number(1, 2), r.number(1, 3), *r.numbers(rank, 5, 8))
    pool = node("MaxPool", "x", "y i", kernel_shape=kernel, **attributes)
    outputs = [tensor_info("y", None), tensor_info("i", None, "l")]
    agrees(model(graph([pool], {"x": x.shape}, outputs)), {"x": x})


@pytest.mark.parametrize("output_shape", [None, ints(1, 2, 8, 6)], ids=["inferred", "given"])
def test_max_unpool_agrees_with_onnxruntime(output_shape: Array | None) -> None:
    x = Random(1).array(1, 2, 8, 6)
    fields: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("MaxPool", "x", "m i", **fields),
        node("MaxUnpool", "m i" if output_shape is None else "m i shape", "y", **fields),
    ]
    constants = {} if output_shape is None else {"shape": output_shape}
    agrees(model(graph(nodes, {"x": x.shape}, "y", constants)), {"x": x})


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_global_pools_agree_with_onnxruntime(kind: str, rank: int) -> None:
    assert_agrees(kind, {"x": Random(rank).array(2, 3, *range(4, 4 + rank))})


COORDINATES = {
    11: ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn"),
    13: ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
    19: ("half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric"),
}
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("seed", range(80))
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_agrees_with_onnxruntime(mode: str, seed: int) -> None:
    r = Random(seed)
    opset = r.choice(*COORDINATES)
    rank = 2 if mode == "cubic" else r.number(1, 3)
    coordinates = r.choice(*COORDINATES[opset])
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = r.choice(*ROUNDINGS)
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": r.choice(-0.5, -0.75), "exclude_outside": r.number(0, 1)}
    x = r.array(1, 2, *r.numbers(rank, 2, 7))
    operands: dict[str, Array | None] = {"x": x, "roi": np.zeros(0, np.float32)}
    if r.number(0, 1):
        scales = [r.choice(0.5, 0.6, 1, 1.5, 2, 2.3, 3) for _ in range(rank)]
        operands["scales"] = np.asarray([1, 1, *scales], np.float32)
    else:
        operands["scales"] = np.zeros(0, np.float32) if opset == 11 else None
        operands["sizes"] = ints(1, 2, *r.numbers(rank, 1, 12))
    assert_agrees("Resize", operands, "roi scales sizes", opset, **attributes)


@pytest.mark.parametrize("scales", [(1.7, 1.7), (0.55, 2.3), (1.33, 0.3)])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", [*COORDINATES[19], "pytorch_half_pixel", "tf_crop_and_resize"]
)
def test_resize_to_fractional_sizes_agrees_with_onnxruntime(
    coordinates: str, mode: str, scales: tuple[float, float]
) -> None:
    """The size of the input times the scale is not an integer, so it is not the output's size."""
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    operands: dict[str, Array | None] = {"x": Random(1).array(1, 2, 9, 7), "roi": None}
    further: list[dict[str, Any]] = [{"antialias": 0}, {"antialias": 1}]
    if coordinates == "tf_crop_and_resize":
        operands["roi"] = np.asarray((0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3), np.float32)
        further = [{"extrapolation_value": 1.5}]
    operands["scales"] = np.asarray((1, 1, *scales), np.float32)
    if mode == "nearest":
        further = [{"nearest_mode": name} for name in ROUNDINGS]
    for more in further:
        assert_agrees("Resize", operands, "roi scales", 19, **attributes, **more)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_scales_that_do_not_change_the_size_agree_with_onnxruntime(mode: str) -> None:
    operands = {
        "x": Random(1).array(1, 2, 5, 3),
        "roi": None,
        "scales": np.asarray((1, 1, 1.1, 1.3), np.float32),
    }
    assert_agrees("Resize", operands, "scales", 19, mode=mode, nearest_mode="ceil")


@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.6, 0.5), (1.0, 1.5)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_operator_set_10_agrees_with_onnxruntime(
    mode: str, scales: tuple[float, float]
) -> None:
    operands = {"x": Random(1).array(1, 2, 5, 7), "s": np.asarray((1, 1, *scales), np.float32)}
    assert_agrees("Resize", operands, "s", 10, mode=mode)


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_agrees_with_onnxruntime(mode: str, opset: int) -> None:
    x, scales = Random(1).array(1, 2, 4, 3), (1.0, 1.0, 2.0, 2.5)
    if opset == 7:
        assert_agrees("Upsample", {"x": x}, opset=7, mode=mode, scales=scales)
    else:
        assert_agrees("Upsample", {"x": x, "s": np.asarray(scales, np.float32)}, "s", 9, mode=mode)


@pytest.mark.parametrize(
    ("attributes", "op"),
    [
        ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}, Resize),
        ({"mode": "linear"}, Resize),
        ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, Resize),
        ({"mode": "linear", "antialias": 1}, Resample),
        ({"mode": "cubic"}, Resample),
    ],
)
def test_resize_of_both_axes_is_one_operator_if_that_is_exact(
    attributes: dict[str, Any], op: type
) -> None:
    constants = {"sizes": ints(1, 2, 8, 2)}
    if attributes["mode"] == "nearest":
        attributes = attributes | {"nearest_mode": "floor"}
    proto = graph(
        [node("Resize", "x _ _ sizes", "y", **attributes)], {"x": [1, 2, 4, 6]}, "y", constants
    )
    found = [n.op for n in load(model(proto).SerializeToString()).graph.nodes]
    assert any(isinstance(o, op) for o in found)


@pytest.mark.parametrize("seed", SEEDS)
def test_grid_sample_agrees_with_onnxruntime(seed: int) -> None:
    r = Random(seed)
    rank, batch = r.choice(2, 2, 3), r.number(1, 2)
    opset = 20 if rank == 3 else r.choice(16, 20)
    modes = ("linear", "nearest", "cubic") if opset == 20 else ("bilinear", "nearest", "bicubic")
    reach = r.choice(1.2, 4.0)
    operands = {
        "x": r.array(batch, 2, *r.numbers(rank, 1, 5)),
        "grid": r.array(batch, *r.numbers(rank, 1, 5), rank, low=-reach, high=reach),
    }
    assert_agrees(
        "GridSample",
        operands,
        opset=opset,
        mode=r.choice(*modes[: 5 - rank]),
        padding_mode=r.choice("zeros", "border", "reflection"),
        align_corners=r.number(0, 1),
    )


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 4, 5), (1, 3, 2, 3, 4)])
def test_affine_grid_agrees_with_onnxruntime(size: tuple[int, ...], corners: int) -> None:
    rank = len(size) - 2
    operands = {"theta": Random(1).array(size[0], rank, rank + 1), "size": ints(*size)}
    assert_agrees("AffineGrid", operands, "size", 20, align_corners=corners)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("opset", [10, 16])
def test_roi_align_agrees_with_onnxruntime(opset: int, seed: int) -> None:
    r = Random(seed)
    corner = r.array(4, 2, low=-1, high=6)
    operands = {
        "x": r.array(2, 3, 6, 7, low=0),
        "boxes": np.concatenate([corner, corner + r.array(4, 2, low=0, high=5)], axis=1),
        "images": ints(0, 1, 1, 0),
    }
    attributes: dict[str, Any] = {
        "mode": r.choice("avg", "max"),
        "output_height": r.number(1, 3),
        "output_width": r.number(1, 3),
        "sampling_ratio": r.number(0, 2),
        "spatial_scale": r.choice(1.0, 0.5),
    }
    if opset == 16:
        modes = ("half_pixel", "output_half_pixel")
        attributes["coordinate_transformation_mode"] = r.choice(*modes)
    assert_agrees("RoiAlign", operands, opset=opset, **attributes)


@pytest.mark.parametrize("seed", range(12))
def test_deform_conv_agrees_with_onnxruntime(seed: int) -> None:
    r = Random(seed)
    groups, parts = r.number(1, 2), r.number(1, 2)
    kernel, size = r.numbers(2, 1, 3), r.numbers(2, 4, 6)
    stride, before = r.numbers(2, 1, 2), r.numbers(2, 0, 1)
    out = [
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip(size, before, kernel, stride, strict=True)
    ]
    taps, outputs = kernel[0] * kernel[1], groups * 2
    operands: dict[str, Array | None] = {
        "x": r.array(2, 2 * groups, *size),
        "w": r.array(outputs, 2, *kernel),
        "offset": r.array(2, parts * taps * 2, *out, low=-2, high=2),
        "b": r.choice(None, r.array(outputs)),
        "mask": r.choice(None, r.array(2, parts * taps, *out)),
    }
    while operands and list(operands.values())[-1] is None:
        operands.popitem()
    assert_agrees(
        "DeformConv",
        operands,
        "w b",
        19,
        group=groups,
        offset_group=parts,
        strides=stride,
        pads=before * 2,
    )


@pytest.mark.parametrize("seed", range(12))
def test_col2im_agrees_with_onnxruntime(seed: int) -> None:
    r = Random(seed)
    rank = 2
    block, size = r.numbers(rank, 1, 3), r.numbers(rank, 5, 7)
    stride, pads = r.numbers(rank, 1, 2), r.numbers(rank, 0, 1)
    blocks = [
        (n + 2 * p - b) // s + 1 for n, p, b, s in zip(size, pads, block, stride, strict=True)
    ]
    operands = {
        "x": r.array(2, 2 * block[0] * block[1], blocks[0] * blocks[1]),
        "size": ints(*size),
        "block": ints(*block),
    }
    assert_agrees("Col2Im", operands, "size block", strides=stride, pads=pads * 2)


# Refusals


@pytest.mark.parametrize(
    ("one", "shape", "constants", "error", "message"),
    [
        (
            node("Conv", "x w", "y"),
            (1, 3, 8, 8),
            {"w": np.ones((4, 2, 3, 3), np.float32)},
            ModelError,
            "do not fit",
        ),
        (
            node("DeformConv", "x w o", "y"),
            (1, 3, 8, 8),
            {"w": np.ones((3,), np.float32), "o": np.ones((1, 18, 6, 6), np.float32)},
            ModelError,
            "must have 4 dimensions",
        ),
        (
            node("Conv", "x w", "y", strides=[0, 1]),
            (1, 3, 8, 8),
            {"w": np.ones((4, 3, 3, 3), np.float32)},
            ModelError,
            "'strides' is",
        ),
        (
            node("Conv", "x w", "y", group=0),
            (1, 3, 8, 8),
            {"w": np.ones((4, 3, 3, 3), np.float32)},
            ModelError,
            "'group' is 0",
        ),
        (
            node("Conv", "x w", "y", auto_pad="SAME"),
            (1, 3, 8, 8),
            {"w": np.ones((4, 3, 3, 3), np.float32)},
            ModelError,
            "auto_pad 'SAME'",
        ),
        (
            node("Conv", "x w", "y"),
            (1, 3, 2, 2),
            {"w": np.ones((4, 3, 3, 3), np.float32)},
            ModelError,
            "does not fit into",
        ),
        (
            node("MaxPool", "x", "y", kernel_shape=[2, 2], pads=[-1, 0, 0, 0]),
            (1, 3, 8, 8),
            {},
            ModelError,
            "'pads' is",
        ),
        (
            node("MaxPool", "x", "y", kernel_shape=[2, 2, 2, 2]),
            (1, 3, 4, 4, 4, 4),
            {},
            UnsupportedError,
            "at most three",
        ),
        (node("MaxPool", "x", "y", kernel_shape=[2]), (1, 3, 8, 8), {}, ModelError, "kernel_shape"),
        (
            node("Resize", "x _ s", "y", mode="cubist"),
            (1, 3, 8, 8),
            {"s": np.ones(4, np.float32)},
            ModelError,
            "mode 'cubist' does not exist",
        ),
        (
            node("Resize", "x _ s", "y"),
            (1, 3, 8, 8),
            {"s": np.ones(3, np.float32)},
            ModelError,
            "its scales",
        ),
        (
            node("Resize", "x _ s", "y"),
            (1, 3, 8, 8),
            {"s": np.asarray([1, 1, 0, 1], np.float32)},
            ModelError,
            "its scales",
        ),
        (node("Resize", "x", "y"), (1, 3, 8, 8), {}, ModelError, "its sizes"),
        (
            node("MaxRoiPool", "x r", "y", pooled_shape=[1, 1]),
            (1, 3, 8, 8),
            {"r": np.zeros((1, 5), np.float32)},
            UnsupportedError,
            "RoiAlign",
        ),
    ],
)
def test_wrong_spatial_operators_are_refused_with_the_reason(
    one: onnx.NodeProto,
    shape: tuple[int, ...],
    constants: dict[str, Array],
    error: type[Exception],
    message: str,
) -> None:
    proto = model(graph([one], {"x": shape}, "y", constants), 18)
    with pytest.raises(error, match=message):
        load(proto.SerializeToString())
