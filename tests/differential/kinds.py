"""The kinds of networks: the generator and the oracle of each."""

from __future__ import annotations

from collections.abc import Callable

from smelt.frontend import Imported
from tests.differential.onnx_float import float_network
from tests.differential.onnx_quantized import quantized_network
from tests.differential.oracles import Truth, onnxruntime_truth, tflite_truth
from tests.differential.quantized_truth import quantized_truth
from tests.differential.recipe import Kind, Network, Recipe
from tests.differential.tflite_int8 import tflite_network

_GENERATORS: dict[Kind, Callable[[Recipe], Network]] = {
    "float": float_network,
    "qdq": quantized_network,
    "tflite": tflite_network,
}


def generate(recipe: Recipe) -> Network:
    """Generate the network of a recipe."""
    return _GENERATORS[recipe.kind](recipe)


def truth_of(network: Network, imported: Imported) -> Truth | str | None:
    """Return the right outputs, or what is wrong with the import; None if no engine gives them."""
    match network.recipe.kind:
        case "float":
            return onnxruntime_truth(network)
        case "qdq":
            return quantized_truth(network, imported)
        case "tflite":
            return tflite_truth(network)
