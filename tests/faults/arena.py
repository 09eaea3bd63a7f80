"""Faults in lifetimes, the planner, and the validator of plans."""

from functools import partial

from tests.faults.fault import Fault

_of = partial(Fault, "arena")
_SCHEDULE = ("tests/schedule/test_schedule.py",)
_ARENA, _SPANS = ("tests/arena/test_planner.py",), ("tests/arena/test_spans.py",)

FAULTS = (
    _of(
        "a buffer's lifetime ends a step early",
        "codegen/schedule/lifetimes.py",
        "self._end[buffer] = max(self._end.get(buffer, 0), time + 1)",
        "self._end[buffer] = max(self._end.get(buffer, 0), time, self._first[buffer] + 1)",
        _SCHEDULE,
    ),
    _of(
        "a result may overwrite an operand that is read again later",
        "codegen/schedule/lifetimes.py",
        "and self._end[reuse.source] == reuse.time + 1",
        "and self._end[reuse.source] >= reuse.time + 1",
        _SCHEDULE,
    ),
    _of(
        "a result may overwrite an operand although it was written before",
        "codegen/schedule/lifetimes.py",
        "            and self._first[reuse.target] == reuse.time\n",
        "",
        ("tests/schedule/test_control_code.py", "-k", "on_the_host or share_memory"),
    ),
    _of(
        "a value from outside a loop lives for the first turn only",
        "codegen/schedule/lifetimes.py",
        "                self.use(buffer, tail)\n",
        "                self.use(buffer, head)\n",
        ("tests/schedule/test_control_code.py", "-k", "on_the_host"),
    ),
    _of(
        "an output of the network may be overwritten",
        "codegen/schedule/schedule.py",
        "for value in (*graph.results, *(graph.inputs if keep_inputs else ())):",
        "for value in (*graph.inputs,) if keep_inputs else ():",
        _SCHEDULE,
    ),
    _of(
        "the planner lets two buffers share a granule",
        "codegen/arena/first_fit.py",
        "(base - size, base + sizes[other])",
        "(base - size, base + sizes[other] - 16)",
        _ARENA,
    ),
    _of(
        "a skyline layout begins a granule below the top of a placed buffer",
        "codegen/arena/skyline.py",
        "(offset + heights) * count",
        "(offset + heights - 16) * count",
        ("tests/arena/test_many_buffers.py",),
    ),
    _of(
        "buffers that may share no byte are joined",
        "codegen/arena/join.py",
        ".union(arena.apart[i])",
        "",
        ("tests/arena/test_join.py",),
    ),
    _of(
        "a buffer counts as dead in its last step",
        "codegen/arena/conflict.py",
        "while ends and ends[0][0] <= buffers[second].start:",
        "while ends and ends[0][0] <= buffers[second].start + 1:",
        _ARENA,
    ),
    _of(
        "a buffer may begin among the live bytes of another one",
        "codegen/arena/conflict.py",
        "found.add((a.low - b.high, a.high - b.low))",
        "found.add((a.low - b.high, a.low - b.low))",
        _SPANS,
    ),
    _of(
        "the validator does not check alignment",
        "codegen/arena/validate.py",
        "if placement.offset % buffer.alignment:",
        "if placement.offset % 1:",
        _ARENA,
    ),
    _of(
        "the validator overlooks buffers that share their last step",
        "codegen/arena/validate.py",
        "live = [span for span in live if span.end > start]",
        "live = [span for span in live if span.end > start + 1]",
        _ARENA,
    ),
)
