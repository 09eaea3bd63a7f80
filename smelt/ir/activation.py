"""Activations that can be fused into an operator: all of them are clamps."""

from __future__ import annotations

import math
from enum import Enum


class Activation(Enum):
    """Clamp fused into an operator; its limits are real numbers, not stored integers."""

    NONE = "none"
    RELU = "relu"
    RELU6 = "relu6"
    RELU_N1_TO_1 = "relu_n1_to_1"
    RELU_0_TO_1 = "relu_0_to_1"

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest real output; infinite if there is no limit on that side."""
        return _LIMITS[self]

    @property
    def is_homogeneous(self) -> bool:
        """Whether clamp(s * x) = s * clamp(x) for every s > 0."""
        return all(limit == 0 or math.isinf(limit) for limit in self.limits)


_LIMITS = {
    Activation.NONE: (-math.inf, math.inf),
    Activation.RELU: (0.0, math.inf),
    Activation.RELU6: (0.0, 6.0),
    Activation.RELU_N1_TO_1: (-1.0, 1.0),
    Activation.RELU_0_TO_1: (0.0, 1.0),
}
