"""Tests of the commit-msg hook."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.projects import must

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check_commit_subject.py"


def _run(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message)
    command = [sys.executable, str(SCRIPT), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "message",
    [
        "Share packed weights between band heights\n",
        "Speed up the planner\n\nIt sorts once.\n",
        "Read the parameters of a layer from a struct\n",
        "Pass lengths as operands\n# a comment of git's\n",
        "Merge branch 'a branch whose name is so long that the subject exceeds the limit of it'\n",
    ],
)
def test_good_subjects_pass(message: str, tmp_path: Path) -> None:
    result = _run(message, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("", "is empty"),
        ("# only comments\n", "is empty"),
        ("Add " + 69 * "x", "has 73 characters"),
        ("Merge " + 67 * "x", "has 73 characters"),
        ("Share weights.", "ends with a period"),
        ("share weights", "capital letter"),
        ("Shared weights", "imperative"),
        ("Shares weights", "imperative"),
        ("Sharing weights", "imperative"),
        ("Kept weights in flash", "imperative"),
        ("Wrote a parser", "imperative"),
        ("Made, and built, a parser", "imperative"),
        ("The parser now reads shapes", "imperative"),
        ("This reads shapes", "imperative"),
        ("We read shapes", "imperative"),
        (":", "capital letter"),
        (": share weights", "capital letter"),
        ("Mend the planner after review", "what changed"),
        ("Share weights\nbetween bands", "second line"),
    ],
)
def test_bad_subjects_are_refused(message: str, problem: str, tmp_path: Path) -> None:
    result = _run(message, tmp_path)
    assert result.returncode == 1
    assert problem in result.stderr


def test_pre_commit_installs_the_hook() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert "commit-msg" in config["default_install_hook_types"]
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    (hook,) = [hook for hook in hooks if hook.get("stages") == ["commit-msg"]]
    assert hook["entry"].endswith("scripts/check_commit_subject.py")


@pytest.mark.parametrize("kind", ["checkout", "copy", "checkout with other hooks"])
def test_make_installs_the_hook_in_a_checkout(kind: str, tmp_path: Path) -> None:
    """Run the recipe that installs the packages of the tests, with `pip` replaced."""
    for name in ("Makefile", "pyproject.toml", ".pre-commit-config.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to("/bin/true")
    (programs / "pre-commit").symlink_to(Path(sys.executable).with_name("pre-commit"))
    if kind != "copy":
        must("git", "init", "--quiet", str(tmp_path))
    if kind == "checkout with other hooks":
        must("git", "-C", str(tmp_path), "config", "core.hooksPath", "own")
    must("make", "-o", "test-tools", "-o", ".venv/bin/python", ".venv/.installed-dev", cwd=tmp_path)
    hook = tmp_path / ".git/hooks/commit-msg"
    assert hook.is_file() == (kind == "checkout")
