"""Networks beside the repository with known outputs, grouped by how exact results must be."""

from __future__ import annotations

INTEGER = (
    "mlperf_tiny/*_int8",
    "tflm/*_int8",
    *(
        f"ops/{name}"
        for name in (
            *(
                "abs",
                "add",
                "add_bcast",
                "avgpool",
                "bmm",
                "concat",
                "conv",
                "conv1x1",
                "div",
                "dw",
            ),
            *("fc", "l2norm"),
            *("hardswish", "leaky", "logistic", "maxpool", "mean_c", "mean_hw", "minimum", "mul"),
            *("pad", "prelu", "relu6", "resize_bil", "resize_bil_hp", "resize_nn", "rsqrt"),
            *("exp", "gelu", "logsoftmax", "softmax", "sqdiff", "sub", "sum", "tanh", "tconv"),
        )
    ),
)
FLOAT = (
    "mlperf_tiny/ad_float32",
    "mlperf_tiny/ic_float32",
    "mlperf_tiny/vww_float32",
    "tflm/*_float32",
)
DYNAMIC_RANGE = "mlperf_tiny/kws_float32"
NOT_BY_TFLM = ("exp", "gelu", "relu6")
"""TFLite Micro refuses the first two, and does not rescale in the third."""
