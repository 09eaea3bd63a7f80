"""Try files in forked children, so that a crash or hang does not end the campaign."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import resource
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from tests.fuzz.case import Case, Format, made
from tests.support.shared import ROOT

Kind = Literal["fine", "refused", "traceback", "crash", "hang", "memory"]
FAILURES: tuple[Kind, ...] = ("traceback", "crash", "hang", "memory")

_TESTS = str(Path("tests", "fuzz"))
FUZZER = "the fuzzer itself"
"""The place of failures without a function of Smelt in the traceback."""
_DEEP = 3
"""Number of innermost functions that distinguish failures."""


@dataclass(frozen=True)
class Limits:
    """Limits of time and memory for one file.

    Attributes:
        seconds: of CPU time.
        bytes: of memory, in addition to what the child used before.
        silence: seconds of wall-clock time without a result after which a child is killed.
    """

    seconds: float = 5.0
    bytes: int = 1 << 30
    silence: float = 120.0


@dataclass(frozen=True)
class Result:
    """The outcome of trying a file.

    Attributes:
        kind: see `Kind`; the last four are failures.
        place: the error's type and the project's innermost functions in its traceback.
        message: the error's message.
        trace: the whole traceback.
        seconds: of the CPU that it took.
        peak: bytes of memory, in addition to what the child used before.
    """

    kind: Kind
    place: str = ""
    message: str = ""
    trace: str = ""
    seconds: float = 0.0
    peak: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Return a key that groups failures; a hang has no fixed place, so all share one."""
        return self.kind, "" if self.kind == "hang" else self.place


def warm(formats: Iterable[Format]) -> None:
    """Try valid files in this process first, so that its children need not import modules."""
    with tempfile.TemporaryDirectory(prefix="smelt-fuzz-") as folder:
        for format_ in formats:
            for variant, name in enumerate(list(format_.seeds())[: format_.variants]):
                path = Path(folder) / f"model{format_.suffix}"
                path.write_bytes(format_.sound(name))
                outcome(partial(format_.check, path, variant), format_)


def tried(
    cases: Iterable[Case],
    formats: Mapping[str, Format],
    limits: Limits,
    jobs: int = 1,
    batch: int = 100,
) -> Iterator[tuple[Case, Result]]:
    """Yield every case with its result; start a new child after one that fails.

    Args:
        cases: to try; with one job, results come in the same order.
        formats: by name.
        limits: of each case.
        jobs: number of children at a time.
        batch: most cases for one child, so that state left by cases does not accumulate.
    """
    source = iter(cases)
    children: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:

        def begin(chosen: Sequence[Case]) -> bool:
            if chosen:
                child = _Child(chosen, formats, limits)
                children[child.pipe] = child
                selector.register(child.pipe, selectors.EVENT_READ)
            return bool(chosen)

        try:
            while True:
                while len(children) < jobs and begin(list(islice(source, batch))):
                    pass
                if not children:
                    return
                for key, _ in selector.select(1.0):
                    child = children[key.fd]
                    yield from child.read()
                    if child.ended:
                        selector.unregister(key.fd)
                        del children[key.fd]
                        child.close()
                        begin(child.rest)
                for child in children.values():
                    child.watch()
        finally:
            for child in children.values():
                child.kill()


class _Child:
    """A child that tries cases until it has done all, or one has ended it."""

    def __init__(
        self, cases: Sequence[Case], formats: Mapping[str, Format], limits: Limits
    ) -> None:
        self.rest, self.ended = list(cases), False
        self._limits, self._buffer, self._heard = limits, b"", time.monotonic()
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child
        self._folder = tempfile.TemporaryDirectory(prefix="smelt-fuzz-")
        self.pipe, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            os.close(self.pipe)
            with contextlib.suppress(BaseException):
                _serve(cases, formats, limits, Path(self._folder.name), writer, self._dump.fileno())
            os._exit(0)
        os.close(writer)

    def read(self) -> Iterator[tuple[Case, Result]]:
        """Return new results; after the child's end, also the case that ended it, if one did."""
        self._heard = time.monotonic()
        data = os.read(self.pipe, 65536)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            yield self.rest.pop(0), Result(**json.loads(line))
        if not data:
            self.ended = True
            _, status = os.waitpid(self._pid, 0)
            if self.rest:
                yield self.rest.pop(0), self._end(status)

    def watch(self) -> None:
        """End a child that has been silent for longer than the limit, as a hang."""
        if time.monotonic() > self._heard + self._limits.silence:
            self._heard = time.monotonic()
            os.kill(self._pid, signal.SIGPROF)

    def kill(self) -> None:
        """Kill the child."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self.close()

    def close(self) -> None:
        """Release the child's resources."""
        os.close(self.pipe)
        self._dump.close()
        self._folder.cleanup()

    def _end(self, status: int) -> Result:
        self._dump.seek(0)
        text = self._dump.read().decode(errors="replace")
        places = _dumped(text)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number == signal.SIGPROF:
            return Result("hang", places, f"more than {self._limits.seconds:g} s", text)
        name = signal.Signals(number).name if number else f"status {os.WEXITSTATUS(status)}"
        return Result("crash", f"{name} {places}", f"the process ended with {name}", text)


def _serve(
    cases: Sequence[Case],
    formats: Mapping[str, Format],
    limits: Limits,
    folder: Path,
    pipe: int,
    dump: int,
) -> None:
    """Run the child: try each case and write a line of JSON about it."""
    faulthandler.enable(dump, all_threads=False)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.register(signal.SIGPROF, dump, all_threads=False, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + limits.bytes, -1))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    for case in cases:
        result = _one(case, formats[case.format], limits, folder)
        os.write(pipe, json.dumps(asdict(result)).encode() + b"\n")


def _one(case: Case, format_: Format, limits: Limits, folder: Path) -> Result:
    try:
        path = folder / f"model{format_.suffix}"
        path.write_bytes(made(case, format_))
    except Exception as error:  # noqa: BLE001 - report a bug in the fuzzer like any other
        return _failed("crash", error)
    _forget_peak()
    before, start = _status("VmRSS"), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    try:
        result = outcome(partial(format_.check, path, case.variant), format_)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds, peak = time.process_time() - start, max(_status("VmHWM") - before, 0)
    if peak > limits.bytes and result.kind not in FAILURES:
        result = Result("memory", "peak", f"{peak >> 20} MiB, and then it was {result.kind}")
    return replace(result, seconds=round(seconds, 3), peak=peak)


def outcome(check: Callable[[], None], format_: Format) -> Result:
    """Return the outcome of a check."""
    try:
        check()
    except format_.refusals as error:
        hidden = _cause(error, MemoryError)
        if hidden is not None:
            return _failed("memory", hidden)
        return Result("refused", type(error).__name__, str(error)[:_LONGEST])
    except MemoryError as error:
        return _failed("memory", error)
    except (KeyboardInterrupt, SystemExit, Exception) as error:  # noqa: BLE001 - the result
        return _failed("traceback", error)
    return Result("fine")


_LONGEST = 500
"""Most characters of a message."""


def _failed(kind: Kind, error: BaseException) -> Result:
    trace = "".join(traceback.format_exception(error, limit=-20))
    return Result(kind, places_of(error), str(error)[:_LONGEST], trace[-20 * _LONGEST :])


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """Return the error of that kind in the chain of causes, if any."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__ or found.__context__
    return found


def places_of(error: BaseException) -> str:
    """Return the error's type and the project's innermost functions in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        f"{place}:{frame.lineno} {frame.name}"
        for frame in frames
        if (place := _place(frame.filename)) and not place.startswith(_TESTS)
    ]
    inner = list(reversed(ours[-_DEEP:])) or [FUZZER, *map(_line, frames[-1:])]
    return " < ".join([type(error).__name__, *inner])


def _line(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"


def _place(file: str) -> str:
    """Return a project file's path relative to the repository; empty for other files."""
    path = Path(file).resolve()
    inside = path.is_relative_to(ROOT) and "site-packages" not in path.parts
    return str(path.relative_to(ROOT)) if inside else ""


_DUMPED = re.compile(r'  File "(.*)", line \d+ in (\S+)')


def _dumped(text: str) -> str:
    """Return the project's innermost functions from faulthandler's output, innermost first."""
    found = [(_place(file), name) for file, name in _DUMPED.findall(text)]
    places = [f"{place} {name}" for place, name in found if place]
    ours = [place for place in places if not place.startswith(_TESTS)]
    return " < ".join((ours or [FUZZER, *places])[:_DEEP])


def _forget_peak() -> None:
    """Reset the peak of memory use, if the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> int:
    """Read a field of `/proc/self/status`, in bytes."""
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
