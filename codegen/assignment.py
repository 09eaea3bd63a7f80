"""What runs on the GPU and what on the CPU, so that all of it takes the least time.

One of two processors for every layer, with a price for what goes from the one to the other: the
cheapest assignment is a minimum cut (H. S. Stone, Multiprocessor scheduling with the aid of network
flow algorithms, IEEE Transactions on Software Engineering, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from smelt.codegen.min_cut import Parting


@dataclass(frozen=True)
class Layer:
    """What a layer takes on the GPU and on the CPU, in nanoseconds, and whether it can be there."""

    times: tuple[float, float]
    can: tuple[bool, bool]


@dataclass(frozen=True)
class Tensor:
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
    layers: Sequence[Layer], submit_ns: float, tensors: Sequence[Tensor] = ()
) -> list[bool]:
    """Whether each layer goes to the GPU in the cheapest assignment.

    A submission is paid where a run of layers on the GPU begins, and a conversion for each tensor
    that is made in one type and read in the other. Where both cost the same, a layer stays.
    """
    parting = Parting()
    gpu, cpu = parting.FIRST, parting.SECOND
    numbers = [parting.node() for _ in layers]
    submit = _price(submit_ns)
    times = chain.from_iterable(priced.times for priced in (*layers, *tensors))
    never = 1 + len(layers) * submit + sum(map(_price, times))
    for before, number, layer in zip([cpu, *numbers], numbers, layers, strict=False):
        there, here = (
            _price(time) if can else never for time, can in zip(layer.times, layer.can, strict=True)
        )
        parting.pay(number, cpu, there)
        parting.pay(gpu, number, here)
        parting.pay(number, before, submit)
    for tensor in tensors:
        narrow, widen = map(_price, tensor.times)
        maker = cpu if tensor.maker is None else numbers[tensor.maker]
        # The one is on the GPU's side where some layer reads float16, the other where all do.
        some, all_ = parting.node(), parting.node()
        parting.pay(some, maker, narrow)
        parting.pay(maker, all_, widen)
        for reader in (numbers[r] for r in tensor.readers):
            parting.pay(reader, some, never)
            parting.pay(all_, reader, never)
        if tensor.wide:
            parting.pay(all_, cpu, never)
    on_gpu = parting.cheapest()
    return [number in on_gpu for number in numbers]


def _price(nanoseconds: float) -> int:
    """Whole picoseconds, which add up to the same in any order."""
    return round(1000 * nanoseconds)
