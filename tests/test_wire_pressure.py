"""Commands that come while the firmware is busy: none is lost on a simulated line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from smelt.boards import compile_project
from smelt.boards.board import load
from smelt.boards.simulate import Simulator
from smelt.boards.stream import SocketStream
from smelt.ir import DType, Graph, Node, Origin, TensorType, Value, verify
from smelt.ops.unary import Unary
from smelt.pipeline import Options
from tests.board_tools import simulable
from tests.graphs import compile_graph

BOARDS = (
    *("mps2-an385", "mps2-an505", "mps3-an547", "microbit"),
    *("netduinoplus2", "lm3s6965evb", "virt-riscv32", "sifive_e"),
)
"""At least one for every driver of a UART that QEMU simulates."""
COMMANDS = 40
"""After an inference has begun: far more bytes than the firmware's queue has."""


def slow_network() -> Graph:
    values = [Value(f"v{i}", TensorType((1000,), DType.FLOAT32)) for i in range(31)]
    nodes = [
        Node(Unary("logistic"), (x,), (y,), Origin("LOGISTIC", i))
        for i, (x, y) in enumerate(pairwise(values))
    ]
    return verify(Graph("net", (values[0],), (values[-1],), tuple(nodes)), "test")


@pytest.mark.qemu
@pytest.mark.parametrize("board", BOARDS)
def test_nothing_is_lost_during_an_inference(board: str, tmp_path: Path) -> None:
    simulable(load(board))
    artefact = compile_graph(slow_network(), Options(board=board))
    artefact.write(tmp_path / "project")
    elf = compile_project(tmp_path / "project", artefact.platform)
    data = np.zeros(1000, np.float32).tobytes()
    sent = b"smelt load 0 %d %08x%%" % (len(data), crc32(data)) + data
    sent += b"smelt invoke%" + COMMANDS * b"smelt reset%"
    with Simulator(load(board), elf.path) as simulator:
        stream = SocketStream(simulator.port)
        try:
            answer = b""
            while b"m-ready" not in answer and (more := stream.receive(5)):
                answer += more  # a UART takes nothing before it is turned on
            stream.send(sent)
            while answer.count(b"m-reset-done") < COMMANDS and (more := stream.receive(5)):
                answer += more
        finally:
            stream.close()
    assert answer.count(b"m-load-done") == 1, answer
    assert answer.count(b"m-invoke-[") == 1, answer
    assert answer.count(b"m-reset-done") == COMMANDS, answer
