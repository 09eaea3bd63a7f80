"""ncnn's Vulkan path in a process of its own; knows nothing of this project.

    python ncnn_peer.py FOLDER INPUT OUTPUT

FOLDER has net.param, net.bin and input.npy. Prints the seconds from nothing to the first result
and that result, as JSON, then for each line "N" that it reads the seconds of N inferences.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Answer until standard input ends."""
    # ncnn says on both streams what it found; the answers alone go where they are read.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    ncnn: Any = import_module("ncnn")

    folder, input_name, output_name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    sample = np.load(folder / "input.npy")
    start = time.perf_counter()
    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    net.opt.num_threads = 1
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        if hasattr(net.opt, f"use_{option}"):
            setattr(net.opt, f"use_{option}", False)
    net.set_vulkan_device(0)
    net.load_param(str(folder / "net.param"))
    net.load_model(str(folder / "net.bin"))
    image = ncnn.Mat(sample)

    def infer() -> Any:
        extractor = net.create_extractor()
        extractor.input(input_name, image)
        return extractor.extract(output_name)[1]

    result = np.array(infer()).ravel().tolist()
    first = time.perf_counter() - start
    answers.write(
        json.dumps({"version": ncnn.__version__, "first": first, "result": result}) + "\n"
    )
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            infer()
        answers.write(f"{time.perf_counter() - start:.6f}\n")


if __name__ == "__main__":
    main()
