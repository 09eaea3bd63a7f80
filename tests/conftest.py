"""What holds for every test: its tools, the cache of compilers, and how hypothesis runs."""

import contextlib
import gc
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Small networks, by several processes at once: threads only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("LP_NUM_THREADS", "1")  # Mesa's Vulkan on the CPU

# A shell lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PATIENCE_S = 600
QEMU_TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
COMPILERS = (
    *("cc", "gcc", "g++", "clang", "clang++"),
    *("arm-none-eabi-gcc", "arm-none-eabi-g++", "riscv64-unknown-elf-gcc"),
)
"""What `ccache` stands before, where it is installed: many tests compile the same firmware."""

# The same examples on every machine, and no time limit an example: compiling one takes its time.
settings.register_profile(
    "smelt", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# `pytest --hypothesis-profile=explore` looks for new examples.
settings.register_profile("explore", settings.get_profile("smelt"), derandomize=False)
settings.load_profile("smelt")


def pytest_configure(config: pytest.Config) -> None:
    """Compile through `ccache`; its variable CCACHE_DISABLE turns that off."""
    ccache = shutil.which("ccache")
    if ccache is None or not config.pluginmanager.has_plugin("cacheprovider"):
        return
    if hasattr(config, "workerinput"):  # it has the environment of who started it
        return
    with contextlib.suppress(OSError):  # what only saves time is no lack where it cannot be had
        links, objects = config.cache.mkdir("compilers"), config.cache.mkdir("ccache")
        for name in COMPILERS:
            stand_before(links / name, ccache)
        os.environ.setdefault("CCACHE_DIR", str(objects))
        os.environ.setdefault("CCACHE_NODIRECT", "1")  # direct: blind to headers that come anew
        os.environ["PATH"] = f"{links}{os.pathsep}{os.environ['PATH']}"


def stand_before(link: Path, ccache: str) -> None:
    """Make a link to `ccache` with a compiler's name, where there is that compiler.

    One that is right already stays: other tests may run through it.
    """
    wanted = ccache if shutil.which(link.name) is not None else None
    found = str(link.readlink()) if link.is_symlink() else None
    if found != wanted:
        link.unlink(missing_ok=True)
        if wanted is not None:
            link.symlink_to(wanted)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what `quick` leaves out into the second tier, which is that of `thorough`.

    `@pytest.mark.quick(setup=("host", "m4"))` names the values (or ids, as text) that a parameter
    has in the quick tier, `@pytest.mark.quick(every=5)` takes each fifth case of the test.
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
    if item.get_closest_marker("skip") is not None:  # says why, and takes no time
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
    """Thousands of tests are no garbage: nobody need look among them for some again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulators, GDB and their likes answer when the computer lets them, which may be late.

    Tests of what is said of those that never answer set limits of their own.
    """
    monkeypatch.setattr("smelt.boards.session._PORT_S", PATIENCE_S)
    monkeypatch.setattr("smelt.boards.session._SOCKET_S", PATIENCE_S)
    monkeypatch.setattr("smelt.boards.flash.runners._MUTE_S", PATIENCE_S)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("qemu") is not None:
        missing = [tool for tool in QEMU_TOOLS if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"not on PATH: {', '.join(missing)}")
