"""The demo: compiles the digits network for a Cortex-M4 board and classifies test images.

It runs under QEMU if the cross compiler and QEMU are installed, else on the host.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.cli.show.report import measured
from smelt.errors import SmeltError
from smelt.ir import Array
from smelt.proof.run import run
from smelt.samples import Sample

HERE = Path(__file__).parent
BOARD = "mps2-an386"
CROSS_TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
IMAGES, COLUMNS = 8, 4
SHADES = " .:-=+*#%@"


def main() -> None:
    """Compile and run the network, and print images, predictions and measurements."""
    console = Console()
    missing = [tool for tool in CROSS_TOOLS if shutil.which(tool) is None]
    if missing:
        console.print(
            f"{' and '.join(missing)} not found: running on this computer instead.\n",
            soft_wrap=True,
        )
    artifact = compile_model(HERE / "digits_int8.tflite", Options(board=None if missing else BOARD))
    data = np.load(HERE / "digits_test.npz")
    samples: list[Sample] = [(sample,) for sample in data["input_0"]]
    with console.status(f"running {len(samples)} images"):
        result = run(artifact, samples)
    predicted = np.array([int(np.argmax(scores)) for (scores,) in result.outputs])
    labels: Array = data["labels"]
    panels = [
        _panel(image, int(digit), int(label))
        for image, digit, label in zip(data["images"], predicted, labels, strict=True)
    ]
    for start in range(0, IMAGES, COLUMNS):
        for line in zip(*(p.split("\n") for p in panels[start : start + COLUMNS]), strict=True):
            console.print("   ".join(line), highlight=False, markup=False)
        console.print()
    expected = data["tflite_reference_0"]
    equal = all(np.array_equal(a[0], b) for a, b in zip(result.outputs, expected, strict=True))
    where = "on this computer" if missing else f"on {BOARD} under QEMU"
    console.print(
        f"Run {where}; outputs {'equal' if equal else 'DIFFER FROM'} TFLite's in every element.\n",
        soft_wrap=True,
    )
    correct = int((predicted == labels).sum())
    console.print(
        Panel(
            Text(f"{correct} of {len(labels)} test images right ({correct / len(labels):.1%})"),
            expand=False,
        )
    )
    measured(console, result.report)


def _panel(image: Array, predicted: int, label: int) -> str:
    """Return an 8 x 8 image of floats in [0, 1] drawn with characters, above its prediction."""
    rows = (
        "".join(SHADES[min(int(x * len(SHADES)), len(SHADES) - 1)] * 2 for x in row)
        for row in image
    )
    verdict = f"read as {predicted}" + ("" if predicted == label else f", is {label}")
    return "\n".join((*rows, f"{verdict:^16}"))


if __name__ == "__main__":
    try:
        main()
    except SmeltError as error:
        sys.exit(f"{type(error).__name__}: {error}")
