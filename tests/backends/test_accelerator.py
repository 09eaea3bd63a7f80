"""An accelerator is only a folder: no code outside of it depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from jinja2 import BaseLoader, ChoiceLoader, DictLoader
from typing_extensions import override

from smelt.api.options import Options
from smelt.codegen import arena
from smelt.codegen.accelerator import (
    Accelerator,
    DeviceOptions,
    DevicePass,
    DeviceProgram,
    NetworkNames,
)
from smelt.codegen.lower import backend as backends
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.device import (
    DeviceCall,
    DeviceFunctions,
    DeviceShare,
    LayerCosts,
    LayerTimes,
    Measurements,
)
from smelt.codegen.lower.kernel import (
    Input,
    Kernel,
    KernelCall,
    Output,
    Parameters,
    Refusal,
    Request,
    Tiling,
)
from smelt.codegen.partition.partitioner import Partitioner
from smelt.codegen.schedule.schedule import Schedule
from smelt.codegen.text.render import environment
from smelt.errors import ConfigError
from smelt.ir import Array, DType, Graph, Node, Origin, TensorType, Value, verify
from smelt.ops.core.unary import Unary
from smelt.targets import DeviceProfile, HostLibrary, Target, catalog, get
from tests.support.graphs import compile_graph

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("codegen", "smelt", "boards", "targets", "templates")
OWN = ("codegen/backends/vulkan/", "templates/backends/vulkan/")
NAMED = {
    "targets/catalog.py",
    "smelt/cli/options.py",
    "smelt/cli/tune.py",
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "boards/computers").iterdir()),
}
"""The only files that may name accelerators: catalogs and the command line's help."""


def test_only_catalogs_and_help_name_accelerators() -> None:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    texts = (path for path in files if not {"__pycache__"} & set(path.parts))
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in texts
        if b"vulkan" in path.read_bytes().lower()
    }
    assert {name for name in naming if not name.startswith(OWN)} <= NAMED


class ToyCall(DeviceCall):
    """Call of the toy accelerator, which negates."""


class ToyFunctions(DeviceFunctions[ToyCall]):
    """Numbers the toy's calls, which compute in their own memory."""

    shares_arena = False

    def __init__(self) -> None:
        self.count = 0

    @override
    def add(self, origin: str, call: ToyCall) -> str:
        self.count += 1
        return f"toy_{self.count}"


class ToyKernel(Kernel[Unary]):
    """Serves `neg` of floats."""

    op = Unary

    @override
    def offer(self, node: Node[Unary], request: Request) -> KernelCall | Refusal:
        if node.op.kind != "neg":
            return Refusal(f"the toy cannot compute {node.op.name}.")
        return ToyCall("", "toy", Parameters(), (Input(0, "x"), Output(0, "y")), form="toy")


@dataclass(frozen=True)
class ToyProgram(DeviceProgram):
    """Program of the steps that the toy computes."""

    steps: tuple[int, ...]
    templates = "toy"
    absent = "toy_is_absent()"
    refusal = "it runs on a toy"
    weights_bytes: int = 0

    @override
    def statement(self, step: int) -> str:
        return f"toy_run({self.steps.index(step)});"

    @override
    def end(self, step: int) -> str:
        return "toy_wait();" if step == self.steps[-1] else ""

    @override
    def headers(self, name: str) -> tuple[str, ...]:
        return ("toy.h",)

    @override
    def sources(self, name: str) -> tuple[str, ...]:
        return (f"{name}_toy.c",)

    @override
    def internal(self, name: str) -> tuple[str, ...]:
        return ()

    @override
    def render(self, net: NetworkNames, comments: Sequence[str]) -> Callable[[], dict[str, str]]:
        return lambda: {"toy.h": "", f"{net.name}_toy.c": ""}

    @override
    def arrays(self, name: str) -> Mapping[str, Array]:
        return {f"{name}_toy": np.zeros(1, np.uint8)}

    @property
    @override
    def compiler(self) -> str:
        return "toy compiler"


class Toy(Accelerator):
    """Accelerator that computes every layer except the first."""

    @override
    def profile(self, name: str) -> DeviceProfile:
        return DeviceProfile(name, "a toy")

    @override
    def costs(self, options: DeviceOptions) -> LayerCosts | None:
        return None

    @override
    def share(self, graph: Graph, partitioner: Partitioner, options: DeviceOptions) -> DeviceShare:
        first, *_, last = graph.nodes
        return DeviceShare(
            lambda node: "The first is the CPU's." if node is first else "",
            lambda node: "A toy's alone." if node is last else "",
        )

    @override
    def passes(self, options: DeviceOptions) -> Sequence[DevicePass]:
        return ()

    @override
    def functions(self) -> ToyFunctions:
        return ToyFunctions()

    @override
    def program(self, schedule: Schedule, plan: arena.Plan) -> DeviceProgram | None:
        steps = tuple(s.index for s in schedule.calls if isinstance(s.call, ToyCall))
        return ToyProgram(steps) if steps else None

    @override
    def environment(self, number: int) -> Mapping[str, str]:
        return {"TOY": str(number)}

    @override
    def load_tuning(self, path: Path) -> Measurements:
        raise ConfigError("a toy is not measured")

    @override
    def tuning(
        self, profile: str, device: str, submit_ns: float, layers: Mapping[str, LayerTimes]
    ) -> Measurements:
        raise ConfigError("a toy is not measured")

    @override
    def worth_measuring(self, blocks: Sequence[Tiling]) -> tuple[Tiling, ...]:
        return ()

    @override
    def neighbors(self, block: Tiling, blocks: Sequence[Tiling]) -> tuple[Tiling, ...]:
        return ()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Target:
    """Return a target with a toy: a kernel folder, a template folder, and a catalog entry."""
    module, modules = ModuleType("toy"), backends.modules_of
    vars(module).update(KERNELS=(ToyKernel(),), ACCELERATOR=Toy())

    def modules_of(name: str) -> tuple[ModuleType, ...]:
        return (module,) if name == "toy" else modules(name)

    monkeypatch.setattr(backends, "modules_of", modules_of)
    target = replace(
        get("host"),
        name="toy",
        backends=("toy", "c"),
        device=DeviceProfile("toy", "a toy"),
        host_libraries=(HostLibrary("toys", "toys.h", "libtoys-dev"),),
    )
    monkeypatch.setitem(vars(catalog)["_BY_NAME"], "toy", target)
    names = (path.name for path in (ROOT / "templates/backends/vulkan/network").iterdir())
    own = DictLoader({f"toy/{name}": f"/* toy: {name} */\n" for name in names})
    loader = environment().loader
    assert isinstance(loader, BaseLoader)
    monkeypatch.setattr(environment(), "loader", ChoiceLoader([loader, own]))
    return target


def negations(count: int) -> Graph:
    type_ = TensorType((1, 4), DType.FLOAT32)
    values = [Value(f"v{i}", type_) for i in range(count + 1)]
    nodes = tuple(
        Node(Unary("neg"), (values[i],), (values[i + 1],), Origin("NEG", i)) for i in range(count)
    )
    return verify(Graph("toyed", (values[0],), (values[-1],), nodes), "test")


def test_another_accelerator_is_a_folder(toy: Target) -> None:
    assert backend("toy").on_device
    artifact = compile_graph(negations(3), Options(target="toy", board="host", cpu_fallback=True))
    assert [step.backend for step in artifact.schedule.calls] == ["c", "toy", "toy"]
    assert artifact.schedule.calls[0].reason == "The first is the CPU's."
    assert [step.reason for step in artifact.schedule.calls[1:]] == ["", "A toy's alone."]
    files, name = artifact.project.files, artifact.network.name
    code = files[f"{name}.c"]
    assert code.index("toy_run(0);") < code.index("toy_run(1);") < code.index("toy_wait();")
    assert "if (toy_is_absent()) {" in code
    assert f"{name}_toy.c" in files["Makefile"]
    assert "-ltoys -lm" in files["Makefile"]
    assert "toys m)" in files["CMakeLists.txt"]
    assert artifact.report["shader_compiler"] == "toy compiler"
    for path, text in files.items():
        said = [line for line in text.lower().splitlines() if "vulkan" in line]
        assert not said, path
