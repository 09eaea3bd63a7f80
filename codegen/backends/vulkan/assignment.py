"""Assignment of layers to the GPU and the CPU for the shortest total time.

If each layer runs on one of two processors and transfers between them have a cost, the cheapest
assignment is a minimum cut (H. S. Stone, Multiprocessor scheduling with the aid of network flow
algorithms, IEEE Transactions on Software Engineering, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.codegen.passes.layout.min_cut import UNCUTTABLE, CutProblem


@dataclass(frozen=True)
class PricedLayer:
    """A layer's cost on each processor.

    Attributes:
        times: Nanoseconds on the GPU and on the CPU.
        can: Whether the layer can run on the GPU, and on the CPU.
    """

    times: tuple[float, float]
    can: tuple[bool, bool]


@dataclass(frozen=True)
class PricedTensor:
    """A tensor that some layers store as float16 on the GPU; all others store it as float32.

    Attributes:
        maker: Index of the layer that writes it as float16 if it runs on the GPU; None if no
            layer does.
        readers: Indices of the layers that read it as float16 if they run on the GPU.
        wide: Whether anything else reads it, as float32.
        times: Nanoseconds of a conversion to float16, and of one back to float32.
    """

    maker: int | None
    readers: tuple[int, ...]
    wide: bool
    times: tuple[float, float]


def assignment(
    layers: Sequence[PricedLayer], submit_ns: float, tensors: Sequence[PricedTensor] = ()
) -> list[bool]:
    """Return, for each layer, whether the cheapest assignment runs it on the GPU.

    Each run of consecutive GPU layers costs one submission. Each tensor that is written as one
    type and read as the other costs a conversion. If both processors cost the same, a layer stays
    on the CPU.

    Args:
        layers: In the order of execution.
        submit_ns: Nanoseconds of a submission.
        tensors: Those that may be stored as float16.
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
        # `some` is on the GPU's side if at least one layer reads float16, `all_` if all do.
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
    """Return whole picoseconds: sums of integers do not depend on their order."""
    return round(1000 * nanoseconds)
