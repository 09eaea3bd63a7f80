"""Run a network with ncnn's Vulkan path in a separate process, without imports from this project.

    python ncnn_peer.py FOLDER INPUT OUTPUT

FOLDER contains net.param, net.bin and input.npy. The process prints a line of JSON: the seconds
until the first result, which include loading, and that result. Then it reads lines with a number N
and prints the seconds of N inferences for each.
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
    """Load the network and answer until standard input ends."""
    # ncnn prints messages to standard output: send them to standard error, and answers to a copy.
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
