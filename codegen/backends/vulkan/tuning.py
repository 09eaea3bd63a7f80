"""What `smelt tune` measured on a device, as a file that builds take and projects keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from smelt.codegen.backends.vulkan.calls import Block, ShaderCall
from smelt.codegen.backends.vulkan.gpus import gpu_called
from smelt.codegen.backends.vulkan.placement import Costs
from smelt.codegen.lower.device import MOST_TRIED, LayerTimes, layer_key
from smelt.codegen.lower.kernel import KernelCall
from smelt.errors import ConfigError
from smelt.ir import Node

Nanoseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_FROZEN = ConfigDict(frozen=True, extra="forbid")


class TunedLayer(BaseModel):
    """What a layer takes, in nanoseconds.

    Attributes:
        gpu_ns: on the GPU beside its submission, with the block below.
        cpu_ns: on the CPU; None where that computes something else in its place.
        block: the one that was faster than the profile's own choice; None where none was.
    """

    model_config = _FROZEN

    gpu_ns: Nanoseconds
    cpu_ns: Nanoseconds | None
    block: Block | None = None

    @staticmethod
    def of(times: LayerTimes) -> TunedLayer:
        """What was measured, as the file has it."""
        block = times.block if isinstance(times.block, Block) else None
        return TunedLayer(gpu_ns=times.device_ns, cpu_ns=times.cpu_ns, block=block)


class Tuning(BaseModel):
    """Measured times and blocks of layers.

    Attributes:
        version: of this form of file.
        gpu: the profile that everything else is taken from.
        device: the GPU that it was measured on, as its driver calls it.
        submit_ns: of submitting a region of layers and waiting for it.
        layers: by `layer_key`; some may be of other networks.
    """

    model_config = _FROZEN

    version: Literal[2] = 2
    gpu: str
    device: str
    submit_ns: Nanoseconds
    layers: dict[str, TunedLayer]

    @property
    def profile(self) -> str:
        """The profile's name."""
        return self.gpu

    @property
    def costs(self) -> Costs:
        """The times for the cut between GPU and CPU.

        Raises:
            ConfigError: there is no such profile.
        """
        gpu = replace(
            gpu_called(self.gpu), name=f"measured on {self.device}", submit_ns=self.submit_ns
        )
        return Costs(gpu, {k: (layer.gpu_ns, layer.cpu_ns) for k, layer in self.layers.items()})

    def require_layers(self, layers: Iterable[tuple[Node, KernelCall]]) -> None:
        """Check that it was measured for these layers, or for some of them.

        Raises:
            ConfigError: it knows none, or gives a block to one on the GPU that has none.
        """
        known, blocks = False, self.blocks
        for node, call in layers:
            key = layer_key(node)
            known |= key in self.layers
            if key in blocks and isinstance(call, ShaderCall) and call.block is None:
                raise ConfigError(
                    f"the tuning gives {node.origin} a block, which it cannot have: write it again "
                    "with `smelt tune`"
                )
        if not known:
            raise ConfigError(
                "the tuning knows no layer of this network, as it is compiled here: measure it "
                "with `smelt tune` and the same options"
            )

    @property
    def blocks(self) -> Mapping[str, Block]:
        """The blocks that differ from the profile's own, by `layer_key`."""
        return {key: layer.block for key, layer in self.layers.items() if layer.block is not None}

    @property
    def text(self) -> str:
        """The file's text."""
        return self.model_dump_json(indent=2) + "\n"


def load_tuning(path: Path) -> Tuning:
    """What a file holds.

    Raises:
        ConfigError: it cannot be read, is none of ours, an earlier Smelt's, or of a GPU whose
            profile is unknown.
    """
    try:
        found = Tuning.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"tuning '{path}' cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        what = f"{where}: {first['msg']}"
        if first["loc"] == ("version",):
            what = f"it is of version {first['input']}, and this Smelt reads version 2"
        raise ConfigError(f"tuning '{path}': {what}; write it again with `smelt tune`") from error
    if "version" not in found.model_fields_set:
        raise ConfigError(f"tuning '{path}' says no version; write it again with `smelt tune`")
    try:
        gpu_called(found.gpu)
    except ConfigError as error:
        raise ConfigError(
            f"tuning '{path}': gpu: {error}; write it again with `smelt tune`"
        ) from error
    return found


def worth_measuring(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks that are measured first beside the one that the profile chooses.

    The best of each size, for how many sums an invocation should keep is what profiles know least
    of; the best of all in workgroups of other sizes; what comes next.
    """
    best = blocks[0]
    usual = [block for block in blocks if block.local == best.local]
    sizes = {block.pixels * block.quads: block for block in reversed(usual)}
    others = [block for block in blocks if replace(block, local=best.local) == best]
    chosen = dict.fromkeys((*sorted(sizes.values(), key=usual.index), *others, *usual))
    return tuple(block for block in chosen if block != best)[:MOST_TRIED]


def neighbours(block: Block, blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Those that differ in one respect: lie the other way, or have half or twice as many of one."""

    def distance(other: Block) -> int:
        counts = (
            (getattr(b, name).bit_length() for name in ("pixels", "quads", "local"))
            for b in (block, other)
        )
        turned = int(block.across != other.across)
        return turned + sum(abs(a - b) for a, b in zip(*counts, strict=True))

    return tuple(other for other in blocks if distance(other) == 1)
