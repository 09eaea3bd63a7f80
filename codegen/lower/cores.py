"""Which cores a kernel's assembly is for."""

from __future__ import annotations

from typing_extensions import override

from smelt.codegen.lower.offer import (
    Kernel,
    OpT_contra,
)
from smelt.targets import Target


class DspKernel(Kernel[OpT_contra]):
    """For cores with the DSP extension and nothing better: M4, M7, M33."""

    @override
    def runs_on(self, target: Target) -> bool:
        return "dsp" in target.features and "mve" not in target.features


class HeliumKernel(Kernel[OpT_contra]):
    """For cores with Helium (MVE): M55."""

    @override
    def runs_on(self, target: Target) -> bool:
        return "mve" in target.features


class WideKernel(Kernel[OpT_contra]):
    """For Armv7-M without the DSP extension: M3."""

    @override
    def runs_on(self, target: Target) -> bool:
        return "long_multiply" in target.features and "dsp" not in target.features


class ThumbKernel(Kernel[OpT_contra]):
    """For cores without long multiplications: M0, M0+; others compile the plain C."""

    @override
    def runs_on(self, target: Target) -> bool:
        return "long_multiply" not in target.features


class PlainKernel(Kernel[OpT_contra]):
    """For cores without the DSP extension."""

    @override
    def runs_on(self, target: Target) -> bool:
        return "dsp" not in target.features
