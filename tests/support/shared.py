"""Networks and golden outputs beside the repository.

A test that needs a shared file skips, with that reason, if the file is absent.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from numpy.typing import NDArray

from bench.shared_folder import ROOT, SHARED, absent

__all__ = ["ROOT", "SHARED", "Network", "load", "networks", "nothing", "shared"]


def shared(relative: str) -> Path:
    """Return the path of a shared file or folder; skip the running test if it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(absent(relative))
    return path


def load(relative: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a shared .npz file; skip the running test if it is absent."""
    with np.load(shared(relative)) as arrays:
        return dict(arrays)


@dataclass(frozen=True)
class Network:
    """A shared TFLite network and its known outputs.

    Attributes:
        group: `mlperf_tiny`, `tflm` or `ops`.
        name: The stem of the file, such as `kws_int8`.
    """

    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"

    @property
    def model(self) -> Path:
        """The .tflite file."""
        return shared(f"models/{self}.tflite")

    @property
    def golden(self) -> dict[str, NDArray[Any]]:
        """`input_0`, `tflm_0`, `litert_reference_0`, …: 16 samples on the first axis."""
        return load(f"golden/{self}.npz")

    @property
    def layers(self) -> dict[str, NDArray[Any]]:
        """Tensors of the first two samples: `s0_t17` is sample 0, tensor 17 of the file."""
        return load(f"golden/{self}.layers.npz")


def networks(*patterns: str) -> pytest.MarkDecorator:
    """Parametrize a test's argument `network` over shared networks.

    Args:
        patterns: Globs below `models/` without suffix: `mlperf_tiny/*_int8`, `ops/conv`.

    Returns:
        A decorator. If nothing matches, the test has one case, which skips with the reason.
    """
    found = [
        Network(path.parent.name, path.stem)
        for pattern in patterns
        for path in sorted((SHARED / "models").glob(f"{pattern}.tflite"))
    ]
    if found:
        return pytest.mark.parametrize("network", found, ids=str)
    return pytest.mark.parametrize("network", [nothing(" or ".join(patterns))])


def nothing(what: str) -> ParameterSet:
    """Return a case that skips, for tests of shared files that are all absent."""
    return pytest.param(None, marks=pytest.mark.skip(reason=absent(what)), id="absent")
