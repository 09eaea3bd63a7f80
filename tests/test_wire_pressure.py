"""Bytes that come faster than the firmware takes them: none is lost on a simulated line."""

from __future__ import annotations

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
from tests.graphs import compile_graph


def network(count: int) -> Graph:
    type_ = TensorType((count,), DType.FLOAT32)
    x, y = Value("x", type_), Value("y", type_)
    return verify(Graph("net", (x,), (y,), (Node(Unary("neg"), (x,), (y,), Origin("NEG", 0)),)), "")


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["mps2-an385", "mps3-an547", "microbit"])
def test_a_whole_conversation_at_once(board: str, tmp_path: Path) -> None:
    """Everything is sent before anything is read: commands, inputs, again, and the last command.

    The data stand at the UART while the firmware still writes its answers.
    """
    artefact = compile_graph(network(1000), Options(board=board))
    artefact.write(tmp_path / "project")
    elf = compile_project(tmp_path / "project", artefact.platform)
    rng = np.random.default_rng(0)
    sent = b""
    for _ in range(3):
        data = rng.standard_normal(1000).astype(np.float32).tobytes()
        sent += b"smelt load 0 %d %08x%%" % (len(data), crc32(data)) + data
    sent += b"smelt invoke%smelt info%"
    with Simulator(load(board), elf.path) as simulator:
        stream = SocketStream("127.0.0.1", simulator.port)
        try:
            stream.send(sent)
            answer = b""
            while b"m-info-[name net" not in answer and (more := stream.receive(20)):
                answer += more
        finally:
            stream.close()
    assert answer.count(b"m-load-done") == 3, answer[-500:]
    assert b"e-[" not in answer
    assert answer.count(b"m-invoke-[") == 1
