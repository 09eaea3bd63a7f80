"""Trains the digits network and writes all binary files of this folder.

A small convolutional network is trained on scikit-learn's 8x8 digits, and exported as float32 ONNX
and as TensorFlow Lite with four types of arithmetic, together with held-out images and reference
outputs. Nothing is written unless the exports agree with the trained network. Run it as
``make train``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

# TensorFlow reads these when it is imported. oneDNN's order of sums would depend on the CPU.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from keras import layers
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

FOLDER = Path(__file__).resolve().parent
SEED = 2024
CLASSES = 10
TEST_IMAGES = 360
STORED_IMAGES = 64
CALIBRATION_IMAGES = 256
VARIANTS = 12
EPOCHS = 24
BATCH = 64
FLOAT_TOLERANCE = 1e-5
LEAST_ACCURACY = 0.98
MOST_ACCURACY_LOST_TO_INT8 = 0.005

Floats: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]
Raw: TypeAlias = NDArray[np.int8]
Attribute: TypeAlias = int | list[int]


@dataclass(frozen=True)
class DigitImages:
    """Images (n, 8, 8, 1) in 0..1 and labels (n,), split into training and test by the seed."""

    train_images: Floats
    train_labels: Labels
    test_images: Floats
    test_labels: Labels


def load_data() -> DigitImages:
    """Load the 1797 digits and hold out 360 of them, in a stratified split."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    parts = train_test_split(
        images, digits.target, test_size=TEST_IMAGES, stratify=digits.target, random_state=SEED
    )
    train_images, test_images, train_labels, test_labels = parts
    return DigitImages(train_images, train_labels, test_images, test_labels)


def augment(images: Floats, labels: Labels) -> tuple[Floats, Labels]:
    """Return the images with randomly rotated, scaled, sheared and shifted variants, in 0..1."""
    random = np.random.default_rng(SEED)
    middle = np.array([3.5, 3.5])
    variants = [images]
    for _ in range(VARIANTS - 1):
        changed = np.empty_like(images)
        for source, result in zip(images, changed, strict=True):
            angle, slant = random.normal(0.0, 0.12, 2)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            matrix = turn @ np.array([[1.0, 0.0], [slant, 1.0]]) * random.normal(1.0, 0.06)
            offset = middle - matrix @ middle + random.uniform(-0.8, 0.8, 2)
            result[..., 0] = ndimage.affine_transform(source[..., 0], matrix, offset, order=1)
        variants.append(changed)
    return np.concatenate(variants), np.tile(labels, VARIANTS)


def build_network() -> keras.Model:
    """Build the network: stem, depthwise-separable step to 4x4, residual block, classifier."""

    def normalized(layer: layers.Layer, x: keras.KerasTensor, activation: str) -> keras.KerasTensor:
        x = layers.BatchNormalization(name=f"{layer.name}_norm")(layer(x))
        return layers.Activation(activation, name=f"{layer.name}_{activation}")(x)

    def conv(channels: int, size: int, name: str) -> layers.Layer:
        return layers.Conv2D(channels, size, padding="same", use_bias=False, name=name)

    halve = layers.DepthwiseConv2D(3, strides=2, padding="same", use_bias=False, name="halve")
    image = keras.Input((8, 8, 1), name="input")
    x = normalized(conv(16, 3, "stem"), image, "relu")
    x = normalized(halve, x, "relu6")
    x = normalized(conv(32, 1, "mix"), x, "relu6")
    branch = normalized(conv(16, 3, "squeeze"), x, "relu")
    branch = normalized(conv(32, 1, "expand"), branch, "linear")
    x = layers.Activation("relu", name="join_relu")(layers.Add(name="join")([x, branch]))
    x = layers.AveragePooling2D(2, name="pool")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dropout(0.2, name="dropout")(x)
    scores = layers.Dense(CLASSES, activation="softmax", name="classify")(x)
    return keras.Model(image, scores, name="digits")


def train(network: keras.Model, images: Floats, labels: Labels) -> None:
    """Train by Adam with decoupled weight decay, a cosine schedule and label smoothing."""
    steps = EPOCHS * -(-len(images) // BATCH)
    network.compile(
        optimizer=keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(4e-3, steps), weight_decay=1e-3
        ),
        loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.05),
    )
    targets = np.eye(CLASSES, dtype=np.float32)[labels]
    network.fit(images, targets, batch_size=BATCH, epochs=EPOCHS, verbose=2)


def fold(network: keras.Model, name: str) -> tuple[Floats, Floats]:
    """Return weights and bias of convolution `name` with its batch normalization folded in.

    The weights keep Keras's layout: (height, width, in, out), or (height, width, channels, 1).
    """
    (weights,) = (np.asarray(w) for w in network.get_layer(name).get_weights())
    norm = network.get_layer(f"{name}_norm")
    gamma, beta, mean, variance = (np.asarray(w, np.float64) for w in norm.get_weights())
    factor = gamma / np.sqrt(variance + norm.epsilon)
    depthwise = isinstance(network.get_layer(name), layers.DepthwiseConv2D)
    scaled = weights * (factor[:, np.newaxis] if depthwise else factor)
    return scaled.astype(np.float32), (beta - mean * factor).astype(np.float32)


@dataclass
class OnnxWriter:
    """Collects the nodes and initializers of an ONNX graph, named as by PyTorch's exporter."""

    network: keras.Model
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, name: str, value: Floats | float) -> str:
        """Add an initializer and return its name."""
        self.constants.append(numpy_helper.from_array(np.array(value, np.float32, order="C"), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Attribute) -> str:
        """Add a node with one output and return the output's name."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"/{output}", **attributes))
        return output

    def conv(self, x: str, name: str) -> str:
        """Add convolution `name` of the network, with Keras's padding "same"."""
        layer = self.network.get_layer(name)
        weights, bias = fold(self.network, name)
        depthwise = isinstance(layer, layers.DepthwiseConv2D)
        order = (2, 3, 0, 1) if depthwise else (3, 2, 0, 1)
        size, stride, edge = layer.kernel_size[0], layer.strides[0], layer.input.shape[1]
        padding = (-(-edge // stride) - 1) * stride + size - edge
        before, after = padding // 2, padding - padding // 2
        weight = self.constant(f"{name}.weight", weights.transpose(order))
        return self.node(
            "Conv",
            [x, weight, self.constant(f"{name}.bias", bias)],
            f"{name}/Conv",
            kernel_shape=[size, size],
            strides=[stride, stride],
            dilations=[1, 1],
            pads=[before, before, after, after],
            group=weights.shape[2] if depthwise else 1,
        )

    def classify(self, x: str) -> str:
        """Add the classifier, with columns reordered because ONNX flattens NCHW channels first."""
        weights, offsets = self.network.get_layer("classify").get_weights()
        height, width, channels = self.network.get_layer("pool").output.shape[1:]
        reordered = weights.reshape(height, width, channels, CLASSES).transpose(3, 2, 0, 1)
        weight = self.constant("classify.weight", reordered.reshape(CLASSES, -1))
        bias = self.constant("classify.bias", offsets)
        scores = self.node("Gemm", [x, weight, bias], "classify/Gemm", transB=1)
        return self.node("Softmax", [scores], "output", axis=1)


def export_onnx(network: keras.Model) -> bytes:
    """Return the network as float32 ONNX, opset 17: `input` (1, 1, 8, 8) to `output` (1, 10)."""
    writer = OnnxWriter(network)
    bounds = [writer.constant("relu6.min", 0.0), writer.constant("relu6.max", 6.0)]
    x = writer.node("Relu", [writer.conv("input", "stem")], "stem/Relu")
    x = writer.node("Clip", [writer.conv(x, "halve"), *bounds], "halve/Clip")
    x = writer.node("Clip", [writer.conv(x, "mix"), *bounds], "mix/Clip")
    branch = writer.node("Relu", [writer.conv(x, "squeeze")], "squeeze/Relu")
    x = writer.node("Add", [x, writer.conv(branch, "expand")], "join/Add")
    x = writer.node("Relu", [x], "join/Relu")
    x = writer.node("AveragePool", [x], "pool/AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    writer.classify(writer.node("Flatten", [x], "flatten/Flatten", axis=1))
    graph = helper.make_graph(
        writer.nodes,
        "digits",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, CLASSES])],
        writer.constants,
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def export_tflite(network: keras.Model, calibration: Floats) -> dict[str, bytes]:
    """Return the network with batch size 1 as TFLite files by name: float32, f16, drq and int8.

    drq is dynamic-range quantization. `calibration` contains the images (n, 8, 8, 1) that determine
    the activation ranges of int8.
    """

    @tf.function(input_signature=[tf.TensorSpec((1, 8, 8, 1), tf.float32, name="input")])
    def infer(image: tf.Tensor) -> tf.Tensor:
        return network(image, training=False)

    def representative_dataset() -> Iterator[list[Floats]]:
        for image in calibration:
            yield [image[np.newaxis]]

    def converter(*optimizations: tf.lite.Optimize) -> tf.lite.TFLiteConverter:
        # Do not pass the network as second argument: without it, variables become constants here,
        # and so does the shape that RESHAPE would otherwise compute at run time.
        made = tf.lite.TFLiteConverter.from_concrete_functions([infer.get_concrete_function()])
        made.optimizations = list(optimizations)
        return made

    half = converter(tf.lite.Optimize.DEFAULT)
    half.target_spec.supported_types = [tf.float16]
    integer = converter(tf.lite.Optimize.DEFAULT)
    integer.representative_dataset = representative_dataset
    integer.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    integer.inference_input_type = tf.int8
    integer.inference_output_type = tf.int8
    return {
        "float32": converter().convert(),
        "f16": half.convert(),
        "drq": converter(tf.lite.Optimize.DEFAULT).convert(),
        "int8": integer.convert(),
    }


def run_onnx(model: bytes, images: Floats) -> Floats:
    """Return class probabilities (n, 10) of images (n, 8, 8, 1)."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    samples = images.transpose(0, 3, 1, 2)[:, np.newaxis]
    return np.array([session.run(None, {"input": sample})[0] for sample in samples])[:, 0]


def run_tflite(model: bytes, samples: Floats | Raw) -> NDArray[Any]:
    """Run samples (n, 1, 8, 8, 1) on LiteRT's reference kernels; return raw outputs (n, 1, 10)."""
    interpreter = Interpreter(
        model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1
    )
    interpreter.allocate_tensors()
    (source,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    outputs = []
    for sample in samples:
        interpreter.set_tensor(source["index"], sample)
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(result["index"]))
    return np.stack(outputs)


def quantize_images(model: bytes, images: Floats) -> Raw:
    """Quantize images (n, 8, 8, 1) in 0..1 to input samples (n, 1, 8, 8, 1) of an int8 network."""
    (source,) = Interpreter(model_content=model).get_input_details()
    scale, zero_point = source["quantization"]
    raw = np.rint(images[:, np.newaxis] / np.float32(scale)) + zero_point
    return np.clip(raw, -128, 127).astype(np.int8)


def require(holds: bool, message: str) -> None:
    """Stop the script, before it writes anything, if `holds` is false."""
    if not holds:
        raise SystemExit(f"train.py: {message}")


def classify_all(
    network: keras.Model, onnx_model: bytes, tflite: dict[str, bytes], images: Floats, raw: Raw
) -> dict[str, NDArray[Any]]:
    """Return each engine's outputs (n, 10) for images (n, 8, 8, 1); `raw`: the same, quantized."""
    outputs = {
        "Keras float32": np.asarray(network(images, training=False)),
        "ONNX float32": run_onnx(onnx_model, images),
    }
    for arithmetic, model in tflite.items():
        samples = raw if arithmetic == "int8" else images[:, np.newaxis]
        outputs[f"TFLite {arithmetic}"] = run_tflite(model, samples)[:, 0]
    return outputs


def check(outputs: dict[str, NDArray[Any]], labels: Labels) -> None:
    """Print the accuracy of the network and its exports, and stop the script if one is too low."""
    accuracy = {name: float(np.mean(out.argmax(1) == labels)) for name, out in outputs.items()}
    for name, value in accuracy.items():
        print(f"{name:15} {value:.2%} of {len(labels)} held-out images")
    for name in ("ONNX float32", "TFLite float32"):
        difference = float(np.abs(outputs[name] - outputs["Keras float32"]).max())
        print(f"{name:15} differs from Keras by at most {difference:.1e}")
        require(difference <= FLOAT_TOLERANCE, f"{name} differs from Keras by {difference:.1e}")
    best, lost = accuracy["Keras float32"], accuracy["Keras float32"] - accuracy["TFLite int8"]
    require(best >= LEAST_ACCURACY, f"the accuracy is only {best:.2%}")
    require(lost <= MOST_ACCURACY_LOST_TO_INT8, f"int8 quantization loses {lost:.2%} of accuracy")


def main() -> None:
    """Train, export and check the network, then write all files."""
    keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    data = load_data()
    network = build_network()
    train(network, *augment(data.train_images, data.train_labels))
    onnx_model = export_onnx(network)
    tflite = export_tflite(network, data.train_images[:CALIBRATION_IMAGES])

    images, labels = data.test_images, data.test_labels
    raw = quantize_images(tflite["int8"], images)
    outputs = classify_all(network, onnx_model, tflite, images, raw)
    check(outputs, labels)

    stored = slice(STORED_IMAGES)
    archive = io.BytesIO()
    np.savez_compressed(
        archive,
        input_0=raw[stored],
        images=images[stored, ..., 0],
        labels=labels[stored],
        tflite_reference_0=outputs["TFLite int8"][stored, np.newaxis],
        float_0=outputs["TFLite float32"][stored, np.newaxis],
    )
    files = {f"digits_{arithmetic}.tflite": model for arithmetic, model in tflite.items()}
    files |= {"digits.onnx": onnx_model, "digits_test.npz": archive.getvalue()}
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
        print(f"{name:24} {len(content):7,} bytes")


if __name__ == "__main__":
    main()
