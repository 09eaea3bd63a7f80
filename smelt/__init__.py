"""Smelt: from trained model to bare metal.

This package has `compile` and `share_arena`, and modules that all packages use: errors, files,
wording, the terminal.
May import everything, once it is called; everything may import it.
"""

from __future__ import annotations

from smelt.version import __version__

# Import nothing else here: Ctrl-C prints a traceback until `smelt.__main__` has started.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Never

    from smelt.api.compile import Compiled
    from smelt.api.quantize import Settings
    from smelt.api.shared_arena import SharedArena
    from smelt.frontend.onnx.options import OnnxLayout
    from smelt.targets import Optimize

__all__ = ["__version__", "compile", "share_arena"]


def compile(  # noqa: A001 - always called as `smelt.compile`
    model: str | Path | bytes,
    *,
    target: str | None = None,
    board: str | None = None,
    optimize: Optimize = "speed",
    name: str | None = None,
    keep_inputs: bool = False,
    max_ram: int | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, tuple[float, ...]] | None = None,
    input_layout: OnnxLayout = "model",
    plugins: Sequence[Path] = (),
    quantize: Settings | None = None,
) -> Compiled:
    """Compile a model file into a C project.

    The result has `.run(inputs)`, `.report` and `.write(directory)`.

    Args:
        model: path of a `.tflite`, `.onnx` or `.smelt` file, or the bytes of a `.tflite` or
            `.onnx` file.
        target: target to generate code for; by default that of the board, or else `host`.
        board: name of a board, or path of a board file.
        optimize: `speed`, `size` or `ram`.
        name: name of the network, a C identifier; by default the stem of the file's name.
        keep_inputs: whether an inference leaves its inputs unchanged.
        max_ram: bytes that arena and states may take together; by default those that the board has.
        dims: sizes of dimensions that an ONNX file leaves open, by name. A pair is the smallest
            and largest size of a dimension with a size known only at run time.
        shapes: shapes of an ONNX file's inputs, by name.
        values: inputs of an ONNX file to make constant, each with the values of its elements.
        input_layout: `nhwc` for images with channels last.
        plugins: Python files with operators of your own; installed plugins are always loaded.
        quantize: settings to quantize a float network first (`smelt.api.quantize.Settings`).

    Raises:
        SmeltError: see `smelt.api.compile.compile_model`.
    """
    # The pipeline is imported here, so that `import smelt.ir` does not import it.
    from smelt.api.compile import compile_model
    from smelt.api.options import Options
    from smelt.api.plugins import kernels, load_plugins
    from smelt.argument_checks import as_items, as_path
    from smelt.frontend import InputOptions

    wanted = "a sequence of paths of Python files"
    files = [as_path(file, "plugins", wanted) for file in as_items(plugins, "plugins", wanted)]
    added = kernels(load_plugins(files))
    none: dict[str, Never] = {}
    inputs = InputOptions(
        none if dims is None else dims,
        none if shapes is None else shapes,
        none if values is None else values,
        input_layout,
    )
    options = Options(
        target=target,
        board=board,
        optimize=optimize,
        name=name,
        keep_inputs=keep_inputs,
        max_ram=max_ram,
        kernels=added,
        inputs=inputs,
        quantize=quantize,
    )
    return compile_model(model, options)


def share_arena(networks: Sequence[Compiled]) -> SharedArena:
    """Put compiled networks that run one after the other into one C project with one arena.

    The result has `.networks`, `.report` and `.write(directory)`.

    Args:
        networks: results of `compile`, for the same target and with the same goal.

    Raises:
        SmeltError: see `smelt.api.shared_arena.share_arena`.
    """
    from smelt.api import shared_arena

    return shared_arena.share_arena(networks)
