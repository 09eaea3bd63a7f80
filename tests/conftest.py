"""What holds for every test: its tools, the cache of compilers, and how hypothesis runs."""

import contextlib
import gc
import os
import shutil
import signal
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


def pytest_collection_finish() -> None:
    """Thousands of tests are no garbage: nobody need look among them for some again and again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("qemu") is not None:
        missing = [tool for tool in QEMU_TOOLS if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"not on PATH: {', '.join(missing)}")
