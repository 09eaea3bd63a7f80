"""From GLSL to SPIR-V, by the compilers of the Khronos group, and validated by theirs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from smelt.errors import GraphError, ToolError
from smelt.ir import Array

ENVIRONMENT = "vulkan1.1"
"""What modules are compiled for and validated against."""

_HINT = "apt-get install glslang-tools spirv-tools"
_LIMIT_S = 120
_MAGIC = 0x07230203


@dataclass(frozen=True)
class Compiler:
    """A GLSL compiler: its name, its path, and the first line that it says of itself.

    `optimizer` is the path of spirv-opt where the compiler does not optimize by itself.
    """

    name: str
    path: str
    version: str
    optimizer: str = ""

    def commands(self, source: str, output: str) -> list[list[str]]:
        """The command lines that compile a file."""
        if self.name == "glslc":
            options = ["-O", "-fshader-stage=compute", f"--target-env={ENVIRONMENT}", "-Werror"]
            return [[self.path, *options, source, "-o", output]]
        return [
            [self.path, "-S", "comp", "--target-env", ENVIRONMENT, source, "-o", output],
            [self.optimizer, "-O", output, "-o", output],
        ]


@cache
def compiler() -> Compiler:
    """The compiler that is installed: glslc, or glslangValidator with spirv-opt.

    Raises:
        ToolError: there is neither.
    """
    glslc, validator, optimizer = map(shutil.which, ("glslc", "glslangValidator", "spirv-opt"))
    if glslc is not None:
        return Compiler("glslc", glslc, _version(glslc))
    if validator is not None and optimizer is not None:
        version = f"{_version(validator)}, {_version(optimizer)}"
        return Compiler("glslangValidator", validator, version, optimizer)
    raise ToolError(
        "the shaders of target 'vulkan' are compiled by 'glslc', or by 'glslangValidator' and "
        f"'spirv-opt', and neither is installed, or on PATH: {_HINT}"
    )


def _version(path: str) -> str:
    try:
        lines = _run([path, "--version"]).splitlines()
    except subprocess.CalledProcessError as error:
        raise ToolError(f"'{path} --version' failed: is it a compiler of shaders?") from error
    return next((line.strip() for line in lines if line.strip()), "")


_compiled: dict[str, Array] = {}


def compile_all(sources: Mapping[str, str]) -> dict[str, Array]:
    """Validated SPIR-V (uint32 words) of GLSL programs, by the same names.

    Raises:
        ToolError: a compiler is missing, took too long, or is none.
        GraphError: a program is wrong, which is a fault of Smelt's.
    """
    return begin(sources)()


def begin(sources: Mapping[str, str]) -> Callable[[], dict[str, Array]]:
    """Start `compile_all`; what it returns waits for the rest, and raises its errors.

    What was compiled before in this process is not compiled again.
    """
    pool = ThreadPoolExecutor(max_workers=4)
    started = {
        text: pool.submit(_compile, name, text)
        for name, text in sources.items()
        if text not in _compiled
    }
    pool.shutdown(wait=False)

    def finish() -> dict[str, Array]:
        _compiled.update({text: words.result() for text, words in started.items()})
        return {name: _compiled[text] for name, text in sources.items()}

    return finish


def _compile(name: str, text: str) -> Array:
    tool, validator = compiler(), shutil.which("spirv-val")
    if validator is None:
        raise ToolError(f"'spirv-val' is not installed, or not on PATH: {_HINT}")
    with tempfile.TemporaryDirectory(prefix="smelt-") as folder:
        source, output = Path(folder) / f"{name}.comp", Path(folder) / f"{name}.spv"
        source.write_text(text, encoding="utf-8")
        for command in tool.commands(str(source), str(output)):
            _judge(name, command, folder)
        words = np.fromfile(output, np.dtype("<u4")) if output.exists() else np.zeros(0)
        if words.size == 0 or words[0] != _MAGIC:
            raise ToolError(
                f"'{tool.path}' wrote no SPIR-V for shader '{name}', and says that all is well: is "
                "it a compiler of shaders?"
            )
        _judge(name, [validator, "--target-env", ENVIRONMENT, str(output)], folder)
        return words


def _judge(name: str, command: Sequence[str], folder: str) -> None:
    """Run what says whether a shader is right."""
    try:
        _run(command)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").replace(folder, "")
        raise GraphError(f"shader '{name}' is wrong ({Path(command[0]).name}): {said}") from error


def _run(command: Sequence[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"'{command[0]}' took more than {_LIMIT_S} s") from error
    except OSError as error:
        raise ToolError(f"'{command[0]}' cannot be started: {error.strerror}") from error
    return result.stdout + result.stderr
