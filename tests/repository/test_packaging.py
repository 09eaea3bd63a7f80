"""The wheel contains exactly the package's files that git tracks, all below `smelt/`."""

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.support.shared import ROOT

FOLDERS = ("boards", "codegen", "frontend", "quant", "targets", "templates")
BUILD_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def tracked() -> list[PurePosixPath]:
    """Return the files that git tracks or does not ignore, without the links in smelt/."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    links = {f"smelt/{folder}" for folder in FOLDERS}
    return [
        PurePosixPath(name)
        for name in listed.split("\0")
        if name and name not in links and (ROOT / name).is_file()
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from the tracked files, without links, and one stale cache file."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in tracked():
        if path.parts[0] in ("smelt", *FOLDERS) or str(path) in BUILD_FILES:
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, source / path)
    stale = source / "templates" / "c" / "__pycache__" / "stale.cpython-311.pyc"
    stale.parent.mkdir(parents=True)
    stale.touch()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(output), str(source)]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = output.glob("*.whl")
    return path


def test_wheel_contains_the_tracked_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.endswith("/")}
    metadata = {name for name in packed if ".dist-info/" in name}
    package = {str(path) for path in tracked() if path.parts[0] == "smelt"}
    folders = {f"smelt/{path}" for path in tracked() if path.parts[0] in FOLDERS}
    assert packed - metadata == package | folders
    assert {Path(name).name for name in metadata} >= {"METADATA", "entry_points.txt", "LICENSE"}


def test_every_module_of_the_wheel_is_importable(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root))
for path in sorted(root.glob("smelt/**/*.py")):
    if path.name == "__main__.py":
        continue
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = importlib.import_module(name)
    assert pathlib.Path(module.__file__).samefile(path), (name, module.__file__)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    imported = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert imported.returncode == 0, imported.stderr


def test_the_command_is_installed(wheel: Path) -> None:
    entry_points = configparser.ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        entry_points.read_string(archive.read(name).decode())
    assert dict(entry_points["console_scripts"]) == {"smelt": "smelt.__main__:main"}


def test_no_file_names_extras_of_the_unpublished_package() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    files += [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file()]
    assert [p for p in files if b"smelt-edge[" in p.read_bytes()] == []
