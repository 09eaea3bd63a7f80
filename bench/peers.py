"""Stored figures of other engines (peers): their sources, and how to measure them again.

`python -m bench peers` prints the table. Peers that are Python packages (onnxruntime, LiteRT, ncnn)
are measured in each benchmark, so that no figures of them are stored.
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
"""TFLite Micro with CMSIS-NN: instructions, code, arena and stack, by network and core."""

ONNX2C = {"dscnn_kws": 19_900_000, "resnet8_onnx2c": 121_400_000, "autoencoder": 1_340_000}
"""onnx2c: instructions of one inference on a Cortex-M4F, to three or four digits.

The revision was not recorded, so that these figures cannot be measured again.
"""

CYCLES_AN_INSTRUCTION = 1.3
"""Assumed cycles per instruction of TFLite Micro; not measured."""


@dataclass(frozen=True)
class Peer:
    """A peer and the source of its figures.

    Attributes:
        name: Name of the peer.
        figures: Where the figures are stored, or that they are measured each time.
        version: Versions of the peer, the compiler and the simulator.
        again: How to measure the figures again.
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
        "build both from source with OPTIMIZED_KERNEL_DIR=cmsis_nn, and count the instructions of "
        "an Invoke other than the first with a QEMU plugin",
    ),
    Peer(
        "CMSIS-NN alone",
        "measured each time",
        "the version in CMSIS_NN_DIR",
        "CMSIS_NN_DIR=FOLDER python -m bench cortexm --compare cmsis_nn",
    ),
    Peer(
        "onnx2c",
        "ONNX2C in bench/peers.py",
        "unknown; gcc 12.2 -O3 -mcpu=cortex-m4 -mfpu=fpv4-sp-d16, QEMU 7.2",
        "impossible: the revision was not recorded. To measure the current one: build "
        "github.com/kraiskil/onnx2c, compile its C for the files in models/float/, run it with "
        "-icount shift=0",
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
    """Print the peers, their versions, and how to measure their figures again."""
    columns = ("peer", "figures", "version", "measure again")
    rows = tuple((p.name, p.figures, p.version, p.again) for p in PEERS)
    TextTable(columns, rows, "Peers").print(Console())
