"""From GLSL to SPIR-V, by the compilers of the Khronos group, and validated by theirs."""

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

    @property
    def batch(self) -> int:
        """Files for a process. Both take far longer to start than to compile one more of them."""
        return 16 if self.name == "glslc" else 1

    def commands(self, names: Sequence[str]) -> list[list[str]]:
        """The command lines that compile files NAME.comp to NAME.comp.spv in the working folder."""
        files = [f"{name}.comp" for name in names]
        if self.name == "glslc":
            options = ["-c", "-O", "-fshader-stage=compute", f"--target-env={ENVIRONMENT}"]
            return [[self.path, *options, "-Werror", *files]]
        compile_ = [self.path, "-S", "comp", "--target-env", ENVIRONMENT]
        optimize = [self.optimizer, "-O", "--strip-debug"]  # glslc writes no names either
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
    """The compiler that is installed: glslc, or glslangValidator with spirv-opt.

    Raises:
        ToolError: there is neither.
    """
    glslc, validator, optimizer = map(_find, ("glslc", "glslangValidator", "spirv-opt"))
    if glslc is not None:
        return Compiler("glslc", glslc, _version(glslc))
    if validator is not None and optimizer is not None:
        version = f"{_version(validator)}, {_version(optimizer)}"
        return Compiler("glslangValidator", validator, version, optimizer)
    raise ToolError(
        "the shaders of target 'vulkan' are compiled by 'glslc', or by 'glslangValidator' and "
        f"'spirv-opt', and neither is installed, or on PATH: {_HINT}"
    )


def _find(tool: str) -> str | None:
    """Its path, wherever it is started from."""
    path = shutil.which(tool)
    return None if path is None else str(Path(path).absolute())


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
    """SPIR-V by GLSL; the names are by GLSL too."""
    tool, validator = compiler(), _find("spirv-val")
    if validator is None:
        raise ToolError(f"'spirv-val' is not installed, or not on PATH: {_HINT}")
    with temporary_folder() as text:
        folder = Path(text)
        for source, name in names.items():
            (folder / f"{name}.comp").write_text(source, encoding="utf-8")
        for command in tool.commands(list(names.values())):
            _judge(command, folder)
        return {source: _validated(name, folder, validator) for source, name in names.items()}


def _validated(name: str, folder: Path, validator: str) -> Array:
    output = folder / f"{name}.comp.spv"
    words = np.fromfile(output, np.dtype("<u4")) if output.exists() else np.zeros(0)
    if words.size == 0 or words[0] != _MAGIC:
        raise ToolError(
            f"'{compiler().path}' wrote no SPIR-V for shader '{name}', and says that all is well: "
            "is it a compiler of shaders?"
        )
    _judge([validator, "--target-env", ENVIRONMENT, output.name], folder)
    return words


def _judge(command: Sequence[str], folder: Path) -> None:
    """Run what says whether shaders are right."""
    try:
        _run(command, folder)
    except subprocess.CalledProcessError as error:
        tool, *arguments = command
        files = ", ".join(file for file in arguments if file.endswith((".comp", ".spv")))
        said = error.stderr or error.stdout or ""
        raise GraphError(f"{Path(tool).name} finds fault with {files}: {said}") from error


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
