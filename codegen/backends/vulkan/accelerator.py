"""The accelerator interface of GPUs that are programmed through Vulkan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from smelt.codegen import arena
from smelt.codegen.accelerator import Accelerator, DeviceOptions, DevicePass
from smelt.codegen.backends.vulkan.calls import Block, gpu_of
from smelt.codegen.backends.vulkan.dispatches import DispatchProgram, program
from smelt.codegen.backends.vulkan.float16 import use_float16
from smelt.codegen.backends.vulkan.gpus import Gpu, gpu_called
from smelt.codegen.backends.vulkan.placement import Costs, device_share
from smelt.codegen.backends.vulkan.shaders import Shaders
from smelt.codegen.backends.vulkan.tuning import (
    TunedLayer,
    Tuning,
    load_tuning,
    neighbors,
    worth_measuring,
)
from smelt.codegen.lower.device import DeviceShare, LayerTimes
from smelt.codegen.lower.kernel import Tiling
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import Schedule
from smelt.ir import Graph


class VulkanGpu(Accelerator):
    """A GPU that runs compute shaders on the arena, in memory that the CPU and the GPU share."""

    @override
    def profile(self, name: str) -> Gpu:
        return gpu_called(name)

    @override
    def costs(self, options: DeviceOptions) -> Costs | None:
        if options.everything:
            return None
        if isinstance(options.tuning, Tuning):
            return options.tuning.costs
        return Costs(gpu_of(options.target))

    @override
    def share(self, graph: Graph, partitioner: Partitioner, options: DeviceOptions) -> DeviceShare:
        return device_share(graph, partitioner, self.costs(options), float16=options.float16)

    @override
    def passes(self, options: DeviceOptions) -> Sequence[DevicePass]:
        return (use_float16,) if options.float16 else ()

    @override
    def functions(self) -> Shaders:
        return Shaders()

    @override
    def program(self, schedule: Schedule, plan: arena.Plan) -> DispatchProgram | None:
        return program(schedule, plan)

    @override
    def environment(self, number: int) -> Mapping[str, str]:
        return {"SMELT_VULKAN_DEVICE": str(number)}

    @override
    def load_tuning(self, path: Path) -> Tuning:
        return load_tuning(path)

    @override
    def tuning(
        self, profile: str, device: str, submit_ns: float, layers: Mapping[str, LayerTimes]
    ) -> Tuning:
        found = {key: TunedLayer.of(times) for key, times in layers.items()}
        return Tuning(gpu=profile, device=device, submit_ns=submit_ns, layers=found)

    @override
    def worth_measuring(self, blocks: Sequence[Tiling]) -> tuple[Block, ...]:
        return worth_measuring(_blocks(blocks))

    @override
    def neighbors(self, block: Tiling, blocks: Sequence[Tiling]) -> tuple[Block, ...]:
        (own,) = _blocks([block])
        return neighbors(own, _blocks(blocks))


def _blocks(blocks: Sequence[Tiling]) -> list[Block]:
    return [block for block in blocks if isinstance(block, Block)]


ACCELERATOR = VulkanGpu()
