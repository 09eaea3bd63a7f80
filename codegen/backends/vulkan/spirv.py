"""Compilation of GLSL to SPIR-V with glslc or glslangValidator, and validation with spirv-val."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from smelt.errors import GraphError, ToolError
from smelt.files import temporary_folder
from smelt.ir import Array

ENVIRONMENT = "vulkan1.1"
"""The target environment for compilation and validation."""

_HINT = "apt-get install glslang-tools spirv-tools"
_LIMIT_S = 120
_MAGIC = 0x07230203


@dataclass(frozen=True)
class Compiler:
    """A GLSL compiler.

    Attributes:
        name: `glslc` or `glslangValidator`.
        path: Its path.
        version: The first line that it prints for `--version`.
        optimizer: Path of spirv-opt if the compiler does not optimize; else empty.
    """

    name: str
    path: str
    version: str
    optimizer: str = ""

    @property
    def batch(self) -> int:
        """Files per process.

        Starting either compiler takes far longer than compiling a file, but only glslc accepts
        several files.
        """
        return 16 if self.name == "glslc" else 1

    def commands(self, names: Sequence[str]) -> list[list[str]]:
        """Return commands that compile NAME.comp to NAME.comp.spv in the working folder."""
        files = [f"{name}.comp" for name in names]
        if self.name == "glslc":
            options = ["-c", "-O", "-fshader-stage=compute", f"--target-env={ENVIRONMENT}"]
            return [[self.path, *options, "-Werror", *files]]
        compile_ = [self.path, "-S", "comp", "--target-env", ENVIRONMENT]
        optimize = [self.optimizer, "-O", "--strip-debug"]  # glslc omits debug names too
        return [
            command
            for file in files
            for command in (
                [*compile_, file, "-o", f"{file}.spv"],
                [*optimize, f"{file}.spv", "-o", f"{file}.spv"],
            )
        ]


@cache
def compiler() -> Compiler:
    """Return the installed compiler: glslc, or glslangValidator with spirv-opt.

    Raises:
        ToolError: Neither is installed.
    """
    glslc, validator, optimizer = map(_find, ("glslc", "glslangValidator", "spirv-opt"))
    if glslc is not None:
        return Compiler("glslc", glslc, _version(glslc))
    if validator is not None and optimizer is not None:
        version = f"{_version(validator)}, {_version(optimizer)}"
        return Compiler("glslangValidator", validator, version, optimizer)
    raise ToolError(
        "target 'vulkan' compiles shaders with 'glslc', or with 'glslangValidator' and "
        f"'spirv-opt', but neither is installed, or on PATH: {_HINT}"
    )


def _find(tool: str) -> str | None:
    """Return the absolute path of a tool, because it may be started in another folder."""
    path = shutil.which(tool)
    return None if path is None else str(Path(path).absolute())


def _version(path: str) -> str:
    try:
        lines = _run([path, "--version"]).splitlines()
    except subprocess.CalledProcessError as error:
        raise ToolError(f"'{path} --version' failed: is it a shader compiler?") from error
    return next((line.strip() for line in lines if line.strip()), "")


_compiled: dict[str, Array] = {}


def compile_all(sources: Mapping[str, str]) -> dict[str, Array]:
    """Compile and validate GLSL programs; return their SPIR-V (uint32 words) by the same names.

    Raises:
        ToolError: A tool is missing, took too long, or is not a shader compiler.
        GraphError: A program is rejected, which is an error in Smelt.
    """
    return begin(sources)()


def begin(sources: Mapping[str, str]) -> Callable[[], dict[str, Array]]:
    """Start `compile_all`; return a function that waits for its result and raises its errors.

    Programs that this process has already compiled are not compiled again.
    """
    new = list({text: name for name, text in sources.items() if text not in _compiled}.items())
    size = compiler().batch if new else 1
    batches = [dict(new[i : i + size]) for i in range(0, len(new), size)]
    pool = ThreadPoolExecutor(max_workers=4)
    started = [pool.submit(_compile, batch) for batch in batches]
    pool.shutdown(wait=False)

    def finish() -> dict[str, Array]:
        for batch in started:
            _compiled.update(batch.result())
        return {name: _compiled[text] for name, text in sources.items()}

    return finish


def _compile(names: Mapping[str, str]) -> dict[str, Array]:
    """Return SPIR-V by GLSL source; `names` contains the names of programs by GLSL source."""
    tool, validator = compiler(), _find("spirv-val")
    if validator is None:
        raise ToolError(f"'spirv-val' is not installed, or not on PATH: {_HINT}")
    with temporary_folder() as text:
        folder = Path(text)
        for source, name in names.items():
            (folder / f"{name}.comp").write_text(source, encoding="utf-8")
        for command in tool.commands(list(names.values())):
            _run_checked(command, folder)
        return {source: _validated(name, folder, validator) for source, name in names.items()}


def _validated(name: str, folder: Path, validator: str) -> Array:
    output = folder / f"{name}.comp.spv"
    words = np.fromfile(output, np.dtype("<u4")) if output.exists() else np.zeros(0)
    if words.size == 0 or words[0] != _MAGIC:
        raise ToolError(
            f"'{compiler().path}' wrote no SPIR-V for shader '{name}', but reported no error: is "
            "it a shader compiler?"
        )
    _run_checked([validator, "--target-env", ENVIRONMENT, output.name], folder)
    return words


def _run_checked(command: Sequence[str], folder: Path) -> None:
    """Run a compiler or validator; raise GraphError if it rejects a shader."""
    try:
        _run(command, folder)
    except subprocess.CalledProcessError as error:
        tool, *arguments = command
        files = ", ".join(file for file in arguments if file.endswith((".comp", ".spv")))
        said = error.stderr or error.stdout or ""
        raise GraphError(f"{Path(tool).name} rejects {files}: {said}") from error


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    try:
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"'{command[0]}' took more than {_LIMIT_S} s") from error
    except OSError as error:
        raise ToolError(f"'{command[0]}' cannot be started: {error.strerror}") from error
    return result.stdout + result.stderr
