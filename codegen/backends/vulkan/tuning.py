"""Results of `smelt tune` on a device: a file that builds use and projects contain."""

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
    """Measured times of a layer, in nanoseconds.

    Attributes:
        gpu_ns: On the GPU, without the submission, with `block`.
        cpu_ns: On the CPU; None if the CPU would compute something else instead.
        block: The block that was faster than the profile's own choice; None if none was.
    """

    model_config = _FROZEN

    gpu_ns: Nanoseconds
    cpu_ns: Nanoseconds | None
    block: Block | None = None

    @staticmethod
    def of(times: LayerTimes) -> TunedLayer:
        """Convert measured times to the form of the file."""
        block = times.block if isinstance(times.block, Block) else None
        return TunedLayer(gpu_ns=times.device_ns, cpu_ns=times.cpu_ns, block=block)


class Tuning(BaseModel):
    """Measured times and blocks of layers.

    Attributes:
        version: Version of the file format.
        gpu: Name of the profile for everything that was not measured.
        device: Name of the measured GPU, as its driver reports it.
        submit_ns: Nanoseconds to submit a region of layers and wait for it.
        layers: Times by `layer_key`; some may belong to other networks.
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
        """Times for the placement on GPU and CPU.

        Raises:
            ConfigError: There is no profile with the name `gpu`.
        """
        gpu = replace(
            gpu_called(self.gpu), name=f"measured on {self.device}", submit_ns=self.submit_ns
        )
        return Costs(gpu, {k: (layer.gpu_ns, layer.cpu_ns) for k, layer in self.layers.items()})

    def require_layers(self, layers: Iterable[tuple[Node, KernelCall]]) -> None:
        """Check that some of these layers were measured.

        Raises:
            ConfigError: None of them was, or there is a block for a layer without blocks.
        """
        known, blocks = False, self.blocks
        for node, call in layers:
            key = layer_key(node)
            known |= key in self.layers
            if key in blocks and isinstance(call, ShaderCall) and call.block is None:
                raise ConfigError(
                    f"the tuning gives {node.origin} a block, but this layer has none: write it "
                    "again with `smelt tune`"
                )
        if not known:
            raise ConfigError(
                "the tuning contains no layer of this network as it is compiled here: measure it "
                "with `smelt tune` and the same options"
            )

    @property
    def blocks(self) -> Mapping[str, Block]:
        """The blocks that differ from the profile's own choice, by `layer_key`."""
        return {key: layer.block for key, layer in self.layers.items() if layer.block is not None}

    @property
    def text(self) -> str:
        """The file's text."""
        return self.model_dump_json(indent=2) + "\n"


def load_tuning(path: Path) -> Tuning:
    """Read a tuning file.

    Raises:
        ConfigError: The file cannot be read, is not a tuning file, has another version, or names
            an unknown profile.
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
            what = f"its version is {first['input']}, but this Smelt reads version 2"
        raise ConfigError(f"tuning '{path}': {what}; write it again with `smelt tune`") from error
    if "version" not in found.model_fields_set:
        raise ConfigError(f"tuning '{path}' has no version; write it again with `smelt tune`")
    try:
        gpu_called(found.gpu)
    except ConfigError as error:
        raise ConfigError(
            f"tuning '{path}': gpu: {error}; write it again with `smelt tune`"
        ) from error
    return found


def worth_measuring(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks to measure first, besides the profile's choice, at most `MOST_TRIED`.

    First the best block of each size (pixels times quads), because profiles predict the best number
    of sums per invocation least reliably; then the profile's choice in workgroups of other sizes;
    then the next best blocks.
    """
    best = blocks[0]
    usual = [block for block in blocks if block.local == best.local]
    sizes = {block.pixels * block.quads: block for block in reversed(usual)}
    others = [block for block in blocks if replace(block, local=best.local) == best]
    chosen = dict.fromkeys((*sorted(sizes.values(), key=usual.index), *others, *usual))
    return tuple(block for block in chosen if block != best)[:MOST_TRIED]


def neighbors(block: Block, blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks that differ from `block` in one respect.

    They have the other value of `across`, or half or twice the pixels, quads or workgroup size.
    """

    def distance(other: Block) -> int:
        counts = (
            (getattr(b, name).bit_length() for name in ("pixels", "quads", "local"))
            for b in (block, other)
        )
        turned = int(block.across != other.across)
        return turned + sum(abs(a - b) for a, b in zip(*counts, strict=True))

    return tuple(other for other in blocks if distance(other) == 1)
