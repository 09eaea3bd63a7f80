"""Sums and pools in plain C, which cores without the DSP extension share."""

from __future__ import annotations

from smelt.codegen.lower.plain_add import PlainAdd
from smelt.codegen.lower.plain_pool import PlainPool

KERNELS = (PlainAdd(), PlainPool())
