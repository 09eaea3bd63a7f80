"""Float networks as PyTorch exports them, with patterns that onnxruntime's optimizer fuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from smelt.ir import Array
from tests.support.onnx_networks import graph, ints, model, node, session, tensor_info

LEVELS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
WIDTH, HEADS, TOKENS = 16, 2, 5


def optimized(proto: onnx.ModelProto, level: str, folder: Path) -> onnx.ModelProto:
    """Return the model as onnxruntime saves it after optimization."""
    path = folder / f"{level}.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3  # It warns that the file is optimized for this kind of machine.
    onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return onnx.load(path)


def optimized_transformer(proto: onnx.ModelProto, heads: str, folder: Path) -> onnx.ModelProto:
    """Return the model as onnxruntime's transformer optimizer writes it, with `heads` heads."""
    from onnxruntime.transformers import fusion_options, optimizer

    options: Any = fusion_options.FusionOptions("bert")
    options.use_multi_head_attention = heads == "MultiHeadAttention"
    path = folder / "transformer.onnx"
    onnx.save(proto, path)
    made: Any = optimizer.optimize_model(
        str(path), "bert", HEADS, WIDTH, opt_level=0, optimization_options=options
    )
    return made.model


def operators(proto: onnx.ModelProto) -> set[str]:
    """Return the names of the operators, with their domains unless these are ONNX's own."""
    return {f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in proto.graph.node}


class _Net:
    """Builder of a network: every method adds operators and returns its result's name."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self._rng = np.random.default_rng(seed)

    def input(self, *shape: int, kind: str = "f") -> str:
        name = f"in{len(self.inputs)}"
        self.inputs.append(tensor_info(name, shape, kind))
        return name

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        given = np.asarray(array)
        narrow = given.astype(np.float32) if given.dtype == np.float64 else given
        self.constants[name] = narrow
        return name

    def weights(self, *shape: int, scale: float = 0.3) -> str:
        return self.constant(self._rng.normal(0, scale, shape))

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(kind, " ".join(inputs), name, **attributes))
        return name

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        return self.add(
            "Add", self.add("MatMul", x, self.weights(inputs, outputs)), self.weights(outputs)
        )

    def norm(self, x: str, whole: bool = True) -> str:
        """Add a layer normalization, as one operator or in parts."""
        scale, bias = self.constant(np.linspace(0.5, 1.5, WIDTH)), self.weights(WIDTH)
        if whole:
            return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
        centered = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        squares = self.add("Pow", centered, self.constant(2.0))
        variance = self.add("Add", self.add("ReduceMean", squares, axes=[-1]), self.constant(1e-5))
        normed = self.add("Div", centered, self.add("Sqrt", variance))
        return self.add("Add", self.add("Mul", normed, scale), bias)

    def rms_norm(self, x: str) -> str:
        squares = self.add("Pow", x, self.constant(2.0))
        mean = self.add("Add", self.add("ReduceMean", squares, axes=[-1]), self.constant(1e-5))
        normed = self.add("Mul", x, self.add("Div", self.constant(1.0), self.add("Sqrt", mean)))
        return self.add("Mul", normed, self.constant(np.linspace(0.5, 1.5, WIDTH)))

    def gelu(self, x: str) -> str:
        erf = self.add("Erf", self.add("Div", x, self.constant(np.sqrt(2))))
        return self.add(
            "Mul", self.add("Mul", x, self.add("Add", erf, self.constant(1.0))), self.constant(0.5)
        )

    def tanh_gelu(self, x: str) -> str:
        cube = self.add("Mul", self.add("Pow", x, self.constant(3.0)), self.constant(0.044715))
        inner = self.add("Mul", self.add("Add", x, cube), self.constant(np.sqrt(2 / np.pi)))
        outer = self.add("Add", self.add("Tanh", inner), self.constant(1.0))
        return self.add("Mul", self.add("Mul", x, self.constant(0.5)), outer)

    def quick_gelu(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", self.add("Mul", x, self.constant(1.702))))

    def heads(self, x: str, order: tuple[int, ...] = (0, 2, 1, 3)) -> str:
        split = self.add("Reshape", x, self.constant(ints(0, 0, HEADS, WIDTH // HEADS)))
        return self.add("Transpose", split, perm=list(order))

    def mask(self) -> str:
        """Return BERT's mask, 0 or -10000, from an input that marks the tokens present."""
        given = self.input(1, TOKENS, kind="l")
        wide = self.add(
            "Unsqueeze",
            self.add("Unsqueeze", given, self.constant(ints(1))),
            self.constant(ints(2)),
        )
        absent = self.add("Sub", self.constant(1.0), self.add("Cast", wide, to=1))
        return self.add("Mul", absent, self.constant(-10000.0))

    def attention(self, x: str, mask: str | None = None) -> str:
        q = self.heads(self.dense(x, WIDTH, WIDTH))
        k = self.heads(self.dense(x, WIDTH, WIDTH), (0, 2, 3, 1))
        v = self.heads(self.dense(x, WIDTH, WIDTH))
        scores = self.add("Div", self.add("MatMul", q, k), self.constant(np.sqrt(WIDTH / HEADS)))
        if mask is not None:
            scores = self.add("Add", scores, mask)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        joined = self.add(
            "Reshape",
            self.add("Transpose", mixed, perm=[0, 2, 1, 3]),
            self.constant(ints(0, 0, WIDTH)),
        )
        return self.dense(joined, WIDTH, WIDTH)

    def model(self, result: str, opset: int = 17) -> onnx.ModelProto:
        """Return the network, whose last operator makes `result`, renamed to `y`."""
        assert list(self.nodes[-1].output) == [result]
        self.nodes[-1].output[0] = "y"
        return model(graph(self.nodes, self.inputs, "y", self.constants), opset)


def _encoder(activation: str, *, whole: bool, masked: bool) -> onnx.ModelProto:
    """Return a block of BERT's encoder, between layer normalizations."""
    net = _Net()
    x = net.norm(net.input(1, TOKENS, WIDTH), whole)
    mask = net.mask() if masked else None
    x = net.norm(net.add("Add", net.attention(x, mask), x), whole)
    inner = getattr(net, activation)(net.dense(x, WIDTH, 2 * WIDTH))
    result = net.norm(net.add("Add", net.dense(inner, 2 * WIDTH, WIDTH), x), whole)
    return net.model(result, 17 if whole else 13)  # LayerNormalization was added in opset 17.


def _rms_block() -> onnx.ModelProto:
    net = _Net()
    x = net.input(1, TOKENS, WIDTH)
    x = net.add("Add", x, net.dense(net.rms_norm(x), WIDTH, WIDTH))
    return net.model(net.rms_norm(x))


def _quick() -> onnx.ModelProto:
    net = _Net()
    return net.model(net.quick_gelu(net.input(2, TOKENS, WIDTH)))


def _products() -> onnx.ModelProto:
    """Return products with transposed and scaled operands."""
    net = _Net()
    a, b = net.input(2, 3, TOKENS, WIDTH), net.input(2, 3, 7, WIDTH)
    turned = net.add("Transpose", b, perm=[0, 1, 3, 2])
    scaled = net.add("Mul", a, net.constant(0.25))
    y = net.add("MatMul", scaled, turned)
    z = net.add("MatMul", net.add("Transpose", y, perm=[0, 1, 3, 2]), a)
    moved = net.add("Transpose", z, perm=[1, 2, 0, 3])
    return net.model(net.add("MatMul", moved, net.weights(3, 1, WIDTH, 4)))


def _dense_relu() -> onnx.ModelProto:
    net = _Net()
    x = net.input(3, WIDTH)
    for activation in ("Relu", "LeakyRelu", "Sigmoid", "Tanh"):
        y = net.add("Gemm", x, net.weights(WIDTH, WIDTH), net.weights(WIDTH), alpha=0.5, beta=0.7)
        x = net.add(activation, y)
    return net.model(x)


def _convolutions() -> onnx.ModelProto:
    """Return convolutions with every activation that is fused into them, sums and pools."""
    net = _Net()
    x = net.input(1, 8, 9, 7)
    for activation, attributes in (
        ("Relu", {}),
        ("LeakyRelu", {"alpha": 0.2}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ):
        y = net.add("Conv", x, net.weights(8, 8, 3, 3, scale=0.1), net.weights(8), pads=[1] * 4)
        x = net.add(activation, y, **attributes)
    y = net.add("Conv", x, net.weights(8, 1, 3, 3), net.weights(8), pads=[1] * 4, group=8)
    y = net.add("Clip", y, net.constant(-0.5), net.constant(0.75))
    z = net.add("Conv", y, net.weights(8, 8, 1, 1), net.weights(8))
    x = net.add("Relu", net.add("Add", z, x))
    x = net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net.model(net.add("GlobalAveragePool", x))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "encoder": lambda: _encoder("gelu", whole=True, masked=False),
    "encoder_masked": lambda: _encoder("gelu", whole=True, masked=True),
    "encoder_parts": lambda: _encoder("tanh_gelu", whole=False, masked=True),
    "encoder_quick": lambda: _encoder("quick_gelu", whole=True, masked=False),
    "rms_block": _rms_block,
    "quick_gelu": _quick,
    "products": _products,
    "dense_relu": _dense_relu,
    "convolutions": _convolutions,
}


def feeds(proto: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    """Return random inputs: small numbers, or for integers a mask without the last token."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for value in session(proto).get_inputs():
        shape = [d if isinstance(d, int) else 1 for d in value.shape]
        if value.type == "tensor(int64)":
            found[value.name] = np.ones(shape, np.int64)
            found[value.name][..., -1] = 0
        else:
            found[value.name] = rng.uniform(-1, 1, shape).astype(np.float32)
    return found
