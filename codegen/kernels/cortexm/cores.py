"""Which cores a kernel's assembly is for."""

from __future__ import annotations

from smelt.codegen.kernels.base import Kernel
from smelt.targets import Target


class DspKernel(Kernel):
    """For cores with the DSP extension and nothing better: M4, M7, M33."""

    def runs_on(self, target: Target) -> bool:
        """See `Kernel.runs_on`."""
        return "dsp" in target.features and "mve" not in target.features


class HeliumKernel(Kernel):
    """For cores with Helium (MVE): M55."""

    def runs_on(self, target: Target) -> bool:
        """See `Kernel.runs_on`."""
        return "mve" in target.features


class WideKernel(Kernel):
    """For Armv7-M without the DSP extension: M3."""

    def runs_on(self, target: Target) -> bool:
        """See `Kernel.runs_on`."""
        return "long_multiply" in target.features and "dsp" not in target.features


class ThumbKernel(Kernel):
    """For cores without long multiplications: M0, M0+; others compile the plain C."""

    def runs_on(self, target: Target) -> bool:
        """See `Kernel.runs_on`."""
        return "long_multiply" not in target.features


class PlainKernel(Kernel):
    """For cores without the DSP extension."""

    def runs_on(self, target: Target) -> bool:
        """See `Kernel.runs_on`."""
        return "dsp" not in target.features
