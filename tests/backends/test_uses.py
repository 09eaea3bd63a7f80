"""What kernels declare in `uses`, and what helpers need, equals what their texts use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest

from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.device import DeviceCall
from smelt.codegen.lower.kernel import KernelCall, Refusal, Request
from smelt.codegen.schedule.shared_symbols import FunctionParameters, Functions
from smelt.codegen.text.helpers import FLOAT, helper_blocks, needs, preamble
from smelt.codegen.text.literals import c_comment
from smelt.ir import Node
from smelt.ops.case import build
from smelt.targets import get
from tests.backends.armv6m import test_kernels as armv6m
from tests.backends.armv7m import test_kernels as armv7m
from tests.backends.c import test_channel_counts
from tests.backends.dsp import test_kernels as dsp
from tests.backends.helium import test_kernels as helium
from tests.backends.test_host import graphs
from tests.lower import test_pools
from tests.support.template_variables import given, looked_up

NEEDLESS = {"sum_of": {"math.h"}, "backends/c/recurrence.j2": {"math.h"}}
"""Headers that are included without need, to keep generated C files as they were."""

OPTIMIZED = ("speed", "size", "ram")
TARGETS = ("host", "cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55")

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CALL = re.compile(r"\b([A-Za-z]\w*)\(")
_POINTER = re.compile(r"_(?:widen|tile|dots|rest|step)_t \*(\w+)")
"""Matches a parameter that points to a function."""
_NO_CALLS = {
    *("aligned", "defined", "for", "if", "int32_t", "return", "sizeof", "switch", "volatile"),
    "while",
}


def used(text: str, own: str) -> set[str]:
    """Return the helpers, headers and `FLOAT` that C uses, except names starting with `own`."""
    code = _COMMENT.sub("", text)
    words = set(re.findall(r"\w+", code))
    found = {word for word in words if word.isupper() and word in helper_blocks()}
    found |= {"SMELT_DSP"} if "SMELT_HAS_DSP" in words else set()
    found |= {FLOAT} if words & {"float", "double"} else set()
    found |= {"math.h"} if words & {"INFINITY", "NAN"} else set()
    pointers = set(_POINTER.findall(code))
    for name in filter(str.islower, set(_CALL.findall(code)) - _NO_CALLS - pointers):
        if name in helper_blocks():
            found.add(name)
        elif name.startswith("mem"):
            found.add("string.h")
        elif name.startswith("arm_"):
            found.add("arm_nnfunctions.h")
        elif not name.startswith(own):
            found.add("math.h")
    return found


def check(calls: Iterable[tuple[str, Node, KernelCall]]) -> None:
    """Fail if a kernel's `uses` differs from what its function's text uses or prints."""
    functions = Functions("own")
    first: dict[str, tuple[str, KernelCall]] = {}
    for name, node, call in calls:
        if not isinstance(call, DeviceCall):
            first.setdefault(functions.add(node, call), (name, call))
    assert first
    wrong: list[str] = []
    for function in functions.all():
        name, call = first[function.name]
        found = used(function.definition, "own_")
        before = preamble(function.uses)
        floats = FLOAT in found.union(*(used(text, "") for text in before.helpers))
        lacks, needless = found - {FLOAT} - function.uses, function.uses - {FLOAT} - found
        needless = needless - NEEDLESS.get(call.template, set())
        lacks |= {FLOAT} if floats and not before.floats else set()
        if lacks or needless:
            wrong.append(
                f"{name}: `uses` of the KernelCall of {call.template} lacks {sorted(lacks)}, which "
                f"the function's text uses, and has {sorted(needless)}, which it does not use"
            )
        variables = given(FunctionParameters, type(call.parameters))
        in_vain = looked_up(call.template) - variables
        ignored = variables - looked_up(call.template) - {"layer_type", "inner"}
        if in_vain or ignored:
            wrong.append(
                f"{name}: {call.template} looks up {sorted(in_vain)} in vain, "
                f"and not {sorted(ignored)}"
            )
        comment = f" Computes {c_comment(function.users[0])}"
        if function.definition.replace("\n * ", " ").count(comment) != 1:
            wrong.append(f"{name}: {call.template} must print `layers` once, in its main comment")
    assert not wrong, "\n".join(wrong[:20])


def offered(
    nodes: Iterable[tuple[str, Node]], request: Request
) -> Iterator[tuple[str, Node, KernelCall]]:
    """Return all offers of the target's kernels, including those that are never used."""
    backends = [backend(name) for name in dict.fromkeys((*request.target.backends, "cmsis_nn"))]
    for name, node in nodes:
        for each in backends:
            offers = each.offers(node, request)
            for call in () if isinstance(offers, Refusal) else offers.calls:
                yield f"{name} on {request.target.name}", node, call
                if call.shared is not None:
                    yield f"{name} on {request.target.name}, shared", node, call.shared.call


def nodes() -> Iterator[tuple[str, Node]]:
    """Return the cases of all operators, and convolutions and dense layers of more shapes."""
    for name, (graph, _) in graphs().items():
        yield from ((name, node) for node in graph.nodes)
    for count in (5, 12, 36):
        for case in test_channel_counts.cases(count):
            for dtype in case.dtypes:
                yield from ((f"{case} of {count}", n) for n in build(case, dtype).nodes)


@pytest.mark.quick(target=("host",))
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_say_what_their_functions_use(target: str) -> None:
    check(
        offer
        for optimize in OPTIMIZED
        for offer in offered(nodes(), Request(get(target), optimize))
    )


def test_kernels_of_cores_say_what_their_functions_use() -> None:
    check(
        (
            *((c.name, e.node, e.call) for c, e in armv6m.entries("cortex-m0")),
            *((c.name, e.node, e.call) for c, e in armv7m.entries()),
            *((c.name, c.node, c.call()) for c in (*dsp.cases(), *helium.cases())),
        )
    )


@pytest.mark.parametrize("target", test_pools.KERNELS)
def test_pools_say_what_their_functions_use(target: str) -> None:
    check((case.name, case.node, call) for case, call in test_pools.served(target))


def test_helpers_say_what_they_use() -> None:
    blocks = list(helper_blocks())
    for name, text in helper_blocks().items():
        found = used(text, name) - {name}
        found = set(filter(str.isupper, found)) if name.isupper() else found
        assert set(needs(name)) - NEEDLESS.get(name, set()) == found, name
        called = [other for other in needs(name) if other in blocks]
        assert called == sorted(called, key=blocks.index), f"{name}: not in the order of the file"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(KeyError, match="has no block 'clmap'"):
        preamble({"clmap"})
