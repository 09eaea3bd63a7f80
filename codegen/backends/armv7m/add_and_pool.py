"""Additions and pools in plain C, shared by all cores without the DSP extension."""

from __future__ import annotations

from smelt.codegen.lower.plain_add import PlainAdd
from smelt.codegen.lower.plain_pool import PlainPool

KERNELS = (PlainAdd(), PlainPool())
