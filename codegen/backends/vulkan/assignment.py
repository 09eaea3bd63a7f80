"""What runs on the GPU and what on the CPU, so that all of it takes the least time.

One of two processors for every layer, with a price for what goes from the one to the other: the
cheapest assignment is a minimum cut (H. S. Stone, Multiprocessor scheduling with the aid of network
flow algorithms, IEEE Transactions on Software Engineering, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.passes.layout.min_cut import UNCUTTABLE, CutProblem


@dataclass(frozen=True)
class PricedLayer:
    """What a layer takes on the GPU and on the CPU, in nanoseconds, and whether it can be there."""

    times: tuple[float, float]
    can: tuple[bool, bool]


@dataclass(frozen=True)
class PricedTensor:
    """A tensor that layers store as float16 on the GPU, and is float32 wherever else it is.

    Attributes:
        maker: number of the layer that makes it as float16 if the GPU computes it; None if none.
        readers: numbers of the layers that read it as float16 if the GPU computes them.
        wide: whether anything else reads it.
        times: nanoseconds of a conversion to float16, and back.
    """

    maker: int | None
    readers: tuple[int, ...]
    wide: bool
    times: tuple[float, float]


def assignment(
    layers: Sequence[PricedLayer], submit_ns: float, tensors: Sequence[PricedTensor] = ()
) -> list[bool]:
    """Whether each layer goes to the GPU in the cheapest assignment.

    A submission is paid where a run of layers on the GPU begins, and a conversion for each tensor
    that is made in one type and read in the other. Where both cost the same, a layer stays on
    the CPU.
    """
    problem = CutProblem()
    cpu, gpu = problem.SOURCE, problem.SINK
    vertices = [problem.vertex() for _ in layers]
    for before, vertex, layer in zip([cpu, *vertices], vertices, layers, strict=False):
        there, here = (
            _picoseconds(time) if can else UNCUTTABLE
            for time, can in zip(layer.times, layer.can, strict=True)
        )
        problem.edge(cpu, vertex, there)
        problem.edge(vertex, gpu, here)
        problem.edge(before, vertex, _picoseconds(submit_ns))
    for tensor in tensors:
        narrow, widen = map(_picoseconds, tensor.times)
        maker = cpu if tensor.maker is None else vertices[tensor.maker]
        # The one is on the GPU's side where some layer reads float16, the other where all do.
        some, all_ = problem.vertex(), problem.vertex()
        problem.edge(maker, some, narrow)
        problem.edge(all_, maker, widen)
        for reader in (vertices[r] for r in tensor.readers):
            problem.edge(some, reader, UNCUTTABLE)
            problem.edge(reader, all_, UNCUTTABLE)
        if tensor.wide:
            problem.edge(cpu, all_, UNCUTTABLE)
    on_gpu = problem.sink_side()
    return [vertex in on_gpu for vertex in vertices]


def _picoseconds(nanoseconds: float) -> int:
    """Whole picoseconds, which add up to the same in any order."""
    return round(1000 * nanoseconds)
