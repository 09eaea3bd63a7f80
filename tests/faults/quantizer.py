"""Faults in the quantizer and in the arithmetic that it shares with the references."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "quantizer")
_CORE = ("tests/quant/test_core.py",)
_REFERENCE = ("tests/ops/test_reference.py",)

FAULTS = (
    _of(
        "scales of depthwise weights have the wrong axis",
        "smelt/ops/core/weights_rules.py",
        "        return 3\n",
        "        return 0\n",
        _CORE,
    ),
    _of(
        "the zero point is one too high",
        "quant/ranges/activation_ranges.py",
        "min(max(round(-128 - low / scale), -128), 127)",
        "min(max(round(-127 - low / scale), -128), 127)",
        _CORE,
    ),
    _of(
        "the zero point has the wrong sign",
        "quant/ranges/activation_ranges.py",
        "scale, min(max(round(-128 - low / scale), -128), 127)",
        "scale, min(max(round(-128 + low / scale), -128), 127)",
        _CORE,
    ),
    _of(
        "the scale of a bias lacks the input's scale",
        "quant/convert.py",
        "bias_scales = tuple(float(np.float32(x.type.scale * scale)) for scale in scales)",
        "bias_scales = tuple(float(np.float32(scale)) for scale in scales)",
        ("tests/quant/test_qdq.py",),
    ),
    _of(
        "a bias is stored in units of the weights alone",
        "quant/weights/integers.py",
        "units = np.rint(bias / (input_scale * scales))",
        "units = np.rint(bias / scales)",
        _CORE,
    ),
    _of(
        "a table is computed from the output's real numbers, not the input's",
        "quant/convert.py",
        "numbers = dequantize_onnx(np.arange(-128, 128, dtype=np.int8), x.type.quant)",
        "numbers = dequantize_onnx(np.arange(-128, 128, dtype=np.int8), quant)",
        _CORE,
    ),
    _of(
        "sums of large weights and biases may overflow 32 bits",
        "quant/weights/integers.py",
        "least = np.maximum(reach / _SUM_LIMIT, 1e-12)",
        "least = np.maximum(reach / 2.0**40, 1e-12)",
        _CORE,
    ),
    _of(
        "an LSTM's cell state is stored with the hidden state's scale",
        "quant/convert.py",
        "quant, wide = self._quants[hidden[-1]], self._quants[cell]",
        "quant, wide = self._quants[hidden[-1]], self._quants[hidden[-1]]",
        ("tests/quant/test_lstm.py",),
    ),
    _of(
        "real numbers are quantized with ties away from zero",
        "smelt/ops/arithmetic/fixed_point.py",
        "scaled = np.rint(real.astype(np.float32) / scale.astype(np.float32))",
        "scaled = round_half_away(real.astype(np.float32) / scale.astype(np.float32))",
        (
            *_REFERENCE,
            "tests/frontend/onnx/test_quantized_operators.py",
            "tests/frontend/onnx/test_quantized.py",
        ),
    ),
    _of(
        "the limits of a fused clamp lack the zero point",
        "smelt/ops/arithmetic/fixed_point.py",
        "return zero_point + (round(quotient)",
        "return (round(quotient)",
        _REFERENCE,
    ),
)
