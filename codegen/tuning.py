"""What `smelt tune` measured on a device, as a file that builds take and projects keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from smelt.codegen.devices import Costs
from smelt.errors import ConfigError
from smelt.targets.gpus import gpu_called

FILE = "tuning.json"
"""Its name in a project."""

Nanoseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Tuning(BaseModel):
    """Measured times of layers, in nanoseconds.

    Attributes:
        version: of this form of file.
        gpu: the profile that everything else is taken from.
        submit_ns: of submitting a region of layers and waiting for it.
        layers: by `layer_key`, what a layer takes on the GPU beside its submission, and on the CPU.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    gpu: str
    submit_ns: Nanoseconds
    layers: dict[str, tuple[Nanoseconds, Nanoseconds]]

    @property
    def costs(self) -> Costs:
        """The same for the cut between GPU and CPU.

        Raises:
            ConfigError: there is no such profile.
        """
        gpu = replace(gpu_called(self.gpu), name="measured", submit_ns=self.submit_ns)
        return Costs(gpu, self.layers)

    @property
    def text(self) -> str:
        """The file's text."""
        return self.model_dump_json(indent=2) + "\n"


def load_tuning(path: Path) -> Tuning:
    """What a file holds.

    Raises:
        ConfigError: it cannot be read, or is none of ours.
    """
    try:
        return Tuning.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"tuning '{path}' cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"tuning '{path}': {where}: {first['msg']}; write it anew with `smelt tune`"
        ) from error
