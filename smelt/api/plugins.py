"""Plugins: modules from other packages that add operators, kernels and converters.

A plugin is a module named by an entry point of group `smelt.plugins`, or a file given with
`--plugin`. It may define

- subclasses of `smelt.ir.Op`, which register themselves under their class name;
- `KERNELS`, a mapping from a backend's name to kernels (`smelt.codegen.lower.kernel.Kernel`);
- `TEMPLATES`, the folder of those kernels' templates (`KernelCall` documents their variables);
- `TFLITE_CONVERTERS`, a mapping from an operator's name in the file (the custom name for a custom
  operator) to `smelt.frontend.tflite.Converter`;
- `ONNX_CONVERTERS`, a mapping from `domain::Operator` to a function that takes a
  `smelt.frontend.onnx.operation.Operation` and returns the values of the operator's outputs.

Kernels of a plugin are preferred to Smelt's own. Operators and converters cannot be replaced.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, cast

from jinja2 import FileSystemLoader

import smelt.codegen.backends as backends
from smelt.codegen.lower.kernel import Kernel
from smelt.codegen.text.render import environment
from smelt.errors import ConfigError
from smelt.ir import Op
from smelt.ops import all_cases

if TYPE_CHECKING:
    from smelt.frontend.onnx.operation import OnnxConverter
    from smelt.frontend.tflite import Converter as TfliteConverter

GROUP = "smelt.plugins"
"""Group of the entry points."""


@dataclass(frozen=True)
class Plugin:
    """Contents of one plugin, besides operators, which register themselves.

    Attributes:
        source: path of the file, or the entry point as `name = module`.
        kernels: kernels by backend.
        converters: TFLite converters by operator name.
        onnx_converters: ONNX converters by `domain::Operator`.
        templates: folder of the kernels' templates, or None.
    """

    source: str
    kernels: Mapping[str, tuple[Kernel, ...]]
    converters: Mapping[str, TfliteConverter]
    onnx_converters: Mapping[str, OnnxConverter]
    templates: Path | None


def load_plugins(files: Sequence[Path] = ()) -> tuple[Plugin, ...]:
    """Import the installed plugins and then `files`; each module is executed once per process.

    Operators, converters and templates are registered here. The caller passes the kernels to the
    compiler (see `kernels`).

    Raises:
        ConfigError: a plugin cannot be imported, is malformed, or redefines something.
    """
    all_cases()  # register Smelt's own operators before those of plugins
    found: list[Plugin] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        found.append(_load(f"{point.name} = {point.value}", point.module, point.load))
    for file in files:
        name = _module_name(file)
        found.append(_load(str(file), name, lambda name=name, file=file: _import(name, file)))
    for plugin in found:
        _register(plugin)
    return tuple(found)


def kernels(plugins: Iterable[Plugin]) -> dict[str, tuple[Kernel, ...]]:
    """Return all kernels by backend; kernels of later plugins come first."""
    table: dict[str, tuple[Kernel, ...]] = {}
    for plugin in plugins:
        for name, own in plugin.kernels.items():
            table[name] = (*own, *table.get(name, ()))
    return table


def _module_name(file: Path) -> str:
    return f"smelt_plugin_{sha256(str(file.resolve()).encode()).hexdigest()[:16]}"


def _import(name: str, file: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load(source: str, name: str, run: Callable[[], object]) -> Plugin:
    """Import one plugin. If that fails, undo its registrations."""
    known = dict(Op.registry)
    try:
        module = run()
        for operator, kind in known.items():
            if Op.registry[operator] is not kind:
                raise ValueError(f"operator {operator} is already defined in {kind.__module__}")
        return Plugin(
            source,
            _kernels(module),
            _converters(module),
            _onnx_converters(module),
            _templates(module),
        )
    except (Exception, SystemExit) as error:
        Op.registry.clear()
        Op.registry.update(known)
        sys.modules.pop(name, None)
        raise ConfigError(f"plugin {source}{_line(source, error)}: {_described(error)}") from error


def _line(file: str, error: BaseException) -> str:
    """Return the last line of the plugin's own file in the traceback, as text."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    own = Path(file).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == own]
    return f", line {lines[-1]}" if lines else ""


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _table(module: object, attribute: str) -> Mapping[str, object]:
    table: object = getattr(module, attribute, {})
    if not isinstance(table, Mapping):
        raise TypeError(f"{attribute} is {table!r}, not a mapping")
    return cast("Mapping[str, object]", table)


def _kernels(module: object) -> dict[str, tuple[Kernel, ...]]:
    names = [package.name for package in iter_modules(backends.__path__) if package.ispkg]
    table: dict[str, tuple[Kernel, ...]] = {}
    for name, value in _table(module, "KERNELS").items():
        if name not in names:
            raise ValueError(f"KERNELS: unknown backend {name!r}; choose from {', '.join(names)}")
        own = tuple(cast("Iterable[object]", value))
        table[name] = tuple(cast("Kernel", kernel) for kernel in own if isinstance(kernel, Kernel))
        if len(table[name]) < len(own):
            raise TypeError(f"KERNELS[{name!r}] must contain only Kernel objects, not {own!r}")
    return table


def _converters(module: object) -> dict[str, TfliteConverter]:
    found = _table(module, "TFLITE_CONVERTERS")
    if not found:
        return {}  # importing tflite is slow, so import it only if needed
    from smelt.frontend.tflite import CONVERTERS, Converter

    table: dict[str, TfliteConverter] = {}
    for name, value in found.items():
        if not isinstance(value, Converter):
            raise TypeError(f"TFLITE_CONVERTERS[{name!r}] is {value!r}, not a Converter")
        if CONVERTERS.get(name, value) is not value:
            raise ValueError(f"operator {name} already has a converter")
        table[name] = value
    return table


def _onnx_converters(module: object) -> dict[str, OnnxConverter]:
    found = _table(module, "ONNX_CONVERTERS")
    table: dict[str, OnnxConverter] = {}
    for name, value in found.items():
        if not callable(value):
            raise TypeError(f"ONNX_CONVERTERS[{name!r}] is {value!r}, not a function")
        converter = cast("OnnxConverter", value)
        if _onnx_table().get(name, converter) is not converter:
            raise ValueError(f"operator {name} already has a converter")
        table[name] = converter
    return table


def _onnx_table() -> dict[str, OnnxConverter]:
    # Importing onnx is slow, so only plugins for ONNX import it.
    from smelt.frontend.onnx.converters import CONVERTERS as onnx_converters

    return onnx_converters


def _templates(module: object) -> Path | None:
    folder: object = getattr(module, "TEMPLATES", None)
    if folder is None:
        return None
    if not isinstance(folder, str | Path) or not Path(folder).is_dir():
        raise ValueError(f"TEMPLATES is {folder!r}, not a folder")
    return Path(folder)


def _register(plugin: Plugin) -> None:
    if plugin.converters:
        from smelt.frontend.tflite import CONVERTERS

        CONVERTERS.update(plugin.converters)
    if plugin.onnx_converters:
        _onnx_table().update(plugin.onnx_converters)
    loader = environment().loader
    if plugin.templates is not None and isinstance(loader, FileSystemLoader):
        folder = str(plugin.templates)
        if folder not in loader.searchpath:
            loader.searchpath.append(folder)  # after Smelt's own folder, which takes precedence
