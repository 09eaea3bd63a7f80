"""Setup for all tests: external tools, the compiler cache, and hypothesis."""

import contextlib
import gc
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Many processes compute small networks at the same time: more threads would slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("LP_NUM_THREADS", "1")  # Mesa's Vulkan on the CPU

# A shell starts background jobs with Ctrl-C ignored; programs that tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PATIENCE_S = 600
QEMU_TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
COMPILERS = (
    *("cc", "gcc", "g++", "clang", "clang++"),
    *("arm-none-eabi-gcc", "arm-none-eabi-g++", "riscv64-unknown-elf-gcc"),
)
"""Compilers that run through `ccache` if it is installed: many tests compile the same firmware."""

# Use the same examples on every machine, without a deadline for each: compiling one takes long.
settings.register_profile(
    "smelt", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# `pytest --hypothesis-profile=explore` searches for new examples.
settings.register_profile("explore", settings.get_profile("smelt"), derandomize=False)
settings.load_profile("smelt")


def pytest_configure(config: pytest.Config) -> None:
    """Compile through `ccache`, unless the environment variable CCACHE_DISABLE is set."""
    ccache = shutil.which("ccache")
    if ccache is None or not config.pluginmanager.has_plugin("cacheprovider"):
        return
    if hasattr(config, "workerinput"):  # a worker inherits the environment of its parent
        return
    with contextlib.suppress(OSError):  # ccache is optional: ignore setup failures
        links, objects = config.cache.mkdir("compilers"), config.cache.mkdir("ccache")
        for name in COMPILERS:
            stand_before(links / name, ccache)
        os.environ.setdefault("CCACHE_DIR", str(objects))
        os.environ.setdefault("CCACHE_NODIRECT", "1")  # direct mode does not notice new headers
        os.environ["PATH"] = f"{links}{os.pathsep}{os.environ['PATH']}"


def stand_before(link: Path, ccache: str) -> None:
    """Create a link to `ccache` with a compiler's name, if that compiler exists.

    A correct link is kept: other tests may be running through it.
    """
    wanted = ccache if shutil.which(link.name) is not None else None
    found = str(link.readlink()) if link.is_symlink() else None
    if found != wanted:
        link.unlink(missing_ok=True)
        if wanted is not None:
            link.symlink_to(wanted)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move the cases that `quick` excludes into the second tier, by marking them `thorough`.

    `@pytest.mark.quick(setup=("host", "m4"))` lists the values (or ids, as text) of a parameter in
    the quick tier. `@pytest.mark.quick(every=5)` keeps each fifth case of the test.
    """
    seen: Counter[str] = Counter()
    left: dict[str, bool] = {}
    for item in items:
        for marker in item.iter_markers("quick"):
            test = item.nodeid.partition("[")[0]
            quick = _is_quick(item, marker, seen)
            left[test] = quick or left.get(test, False)
            if not quick:
                item.add_marker(pytest.mark.thorough)
    whole = not any("[" in argument for argument in config.args)
    for test in (test for test, quick in left.items() if whole and not quick):
        raise pytest.UsageError(f"{test}: quick leaves no case in the quick tier")


def _is_quick(item: pytest.Item, marker: pytest.Mark, seen: Counter[str]) -> bool:
    assert isinstance(item, pytest.Function)
    if (
        item.get_closest_marker("skip") is not None
    ):  # the marker gives the reason, and skipping takes no time
        return True
    parameters = item.callspec.params
    for name, wanted in marker.kwargs.items():
        if name == "every":
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if (seen[test] - 1) % wanted:
                return False
        elif name not in parameters:
            raise pytest.UsageError(f"{item.nodeid}: quick names '{name}', which is no parameter")
        elif str(parameters[name]) not in map(str, wanted):
            return False
    return True


def pytest_collection_finish() -> None:
    """Freeze collected tests so that the garbage collector does not rescan them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let simulators, GDB and similar programs take as long as they need on a busy computer.

    Tests of the messages about programs that never answer set their own timeouts.
    """
    monkeypatch.setattr("smelt.boards.session._PORT_S", PATIENCE_S)
    monkeypatch.setattr("smelt.boards.session._SOCKET_S", PATIENCE_S)
    monkeypatch.setattr("smelt.boards.flash.runners._SILENCE_S", PATIENCE_S)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("qemu") is not None:
        missing = [tool for tool in QEMU_TOOLS if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"not on PATH: {', '.join(missing)}")


@pytest.fixture
def whole_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile without segments, so that every layer computes whole tensors."""

    def none(graph: object) -> bool:
        return False

    monkeypatch.setattr("smelt.api.compile.can_have_segments", none)
