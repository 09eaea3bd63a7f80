"""Figures of peers that are written down: whose they are, and how to measure them again.

`python -m bench peers` prints the table.

Peers that Python packages bring (onnxruntime, LiteRT, ncnn) run beside us each time, and have no
figures here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from smelt.cli.show.tables import TextTable

TFLM_CMSIS_NN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "tflm_cmsis_nn.json").read_text()
)["models"]
"""TFLite Micro with CMSIS-NN: by network and core, instructions, code, arena, stack."""

ONNX2C = {"dscnn_kws": 19_900_000, "resnet8_onnx2c": 121_400_000, "autoencoder": 1_340_000}
"""onnx2c: instructions of one inference on a Cortex-M4F, to three or four digits.

The revision was not noted, so that these figures cannot be measured again.
"""

CYCLES_AN_INSTRUCTION = 1.3
"""What an instruction of TFLite Micro's is taken to need: an assumption, not a measurement."""


@dataclass(frozen=True)
class Peer:
    """A peer, and what is known of its figures.

    Attributes:
        name: of the peer.
        figures: where they stand, or that they are measured each time.
        version: of the peer and of what compiled and ran it.
        again: how to measure them again.
    """

    name: str
    figures: str
    version: str
    again: str


PEERS = (
    Peer(
        "TFLite Micro with CMSIS-NN",
        "bench/tflm_cmsis_nn.json",
        "tflite-micro 90b983c2, CMSIS-NN 4ab83cc3, gcc 12.2.1, QEMU 7.2; smallest of its builds",
        "no package: build both from source with OPTIMIZED_KERNEL_DIR=cmsis_nn, and count one "
        "steady Invoke with a plugin of QEMU's that counts instructions",
    ),
    Peer(
        "CMSIS-NN alone",
        "measured each time",
        "whatever lies in CMSIS_NN_DIR",
        "CMSIS_NN_DIR=FOLDER python -m bench cortexm --compare cmsis_nn",
    ),
    Peer(
        "onnx2c",
        "ONNX2C in bench/peers.py",
        "unknown; gcc 12.2 -O3 -mcpu=cortex-m4 -mfpu=fpv4-sp-d16, QEMU 7.2",
        "cannot be: nobody noted the revision. For today's: build github.com/kraiskil/onnx2c, "
        "compile its C for the files in models/float/, run it with -icount shift=0",
    ),
    Peer(
        "onnxruntime, LiteRT",
        "measured each time",
        "as installed by the extra `test`",
        "python -m bench float; python -m bench quantized",
    ),
    Peer(
        "ncnn",
        "measured each time",
        "as installed for --peer-python",
        "pip install ncnn; python -m bench vulkan",
    ),
)


def main() -> None:
    """Print whom we compare with, in which version, and how to measure their figures again."""
    columns = ("peer", "figures", "version", "measure again")
    rows = tuple((p.name, p.figures, p.version, p.again) for p in PEERS)
    TextTable(columns, rows, "Peers").print(Console())
