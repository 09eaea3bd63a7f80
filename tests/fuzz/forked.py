"""Tries files in forked children: what they do to a child, the campaign survives."""

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
"""The place of what failed in nothing of Smelt's."""
_DEEP = 3
"""Innermost places of ours by which failures are told apart."""


@dataclass(frozen=True)
class Limits:
    """What a file may take.

    Attributes:
        seconds: of the CPU.
        bytes: of memory, beside what the child had before.
        silence: seconds of the wall's clock after which a child that only waits is ended.
    """

    seconds: float = 5.0
    bytes: int = 1 << 30
    silence: float = 120.0


@dataclass(frozen=True)
class Result:
    """What became of a file.

    Attributes:
        kind: see `Kind`; the last four are failures.
        place: the error and the innermost functions of ours that it passed.
        message: what was said.
        trace: where, at length.
        seconds: of the CPU that it took.
        peak: bytes of memory beside what the child had before.
    """

    kind: Kind
    place: str = ""
    message: str = ""
    trace: str = ""
    seconds: float = 0.0
    peak: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Equal for failures that are taken for the same; a hang stops at no certain place."""
        return self.kind, "" if self.kind == "hang" else self.place


def warm(formats: Iterable[Format]) -> None:
    """Try sound files in this process, so that its children need not import what they use."""
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
    """Every case with its result; a child that fails is followed by another one.

    Args:
        cases: as many as there are; with one job their results come in the same order.
        formats: by name.
        limits: of each case.
        jobs: how many children there are at a time.
        batch: cases that a child tries at most, so that none grows old.
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
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child
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
        """What has been found; at the end of the child the case that ended it, if one did."""
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
        """End a child that has said nothing for so long that it must be waiting for something."""
        if time.monotonic() > self._heard + self._limits.silence:
            self._heard = time.monotonic()
            os.kill(self._pid, signal.SIGPROF)

    def kill(self) -> None:
        """End the child, whatever it does."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self.close()

    def close(self) -> None:
        """Forget what the child has left behind."""
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
    """What the child does: one line of JSON a case."""
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
    except Exception as error:  # noqa: BLE001 - a fault of the fuzzer's is told like any other
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
    """What became of a check."""
    try:
        check()
    except format_.refusals as error:
        hidden = _cause(error, MemoryError)
        if hidden is not None:
            return _failed("memory", hidden)
        return Result("refused", type(error).__name__, str(error)[:_LONGEST])
    except MemoryError as error:
        return _failed("memory", error)
    except (KeyboardInterrupt, SystemExit, Exception) as error:  # noqa: BLE001 - that is the point
        return _failed("traceback", error)
    return Result("fine")


_LONGEST = 500
"""Characters of a message."""


def _failed(kind: Kind, error: BaseException) -> Result:
    trace = "".join(traceback.format_exception(error, limit=-20))
    return Result(kind, places_of(error), str(error)[:_LONGEST], trace[-20 * _LONGEST :])


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The error of that kind that led to this one, if any did."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__ or found.__context__
    return found


def places_of(error: BaseException) -> str:
    """An error's type, and the innermost functions of ours that it passed."""
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
    """A file of ours as seen from the repository; empty for those of others."""
    path = Path(file).resolve()
    inside = path.is_relative_to(ROOT) and "site-packages" not in path.parts
    return str(path.relative_to(ROOT)) if inside else ""


_DUMPED = re.compile(r'  File "(.*)", line \d+ in (\S+)')


def _dumped(text: str) -> str:
    """The innermost functions of ours that faulthandler wrote; it writes them first."""
    found = [(_place(file), name) for file, name in _DUMPED.findall(text)]
    places = [f"{place} {name}" for place, name in found if place]
    ours = [place for place in places if not place.startswith(_TESTS)]
    return " < ".join((ours or [FUZZER, *places])[:_DEEP])


def _forget_peak() -> None:
    """Let the greatest use of memory be counted again, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> int:
    """Bytes that Linux says of this process."""
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
