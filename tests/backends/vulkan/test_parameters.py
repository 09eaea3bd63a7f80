"""What shaders are told is what they print: equal parameters, and only these, are equal GLSL."""

from __future__ import annotations

from collections import defaultdict

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.offer import Parameters, Request
from smelt.codegen.text.render import render
from smelt.ops import all_cases
from smelt.ops.case import build
from smelt.targets import get

AROUND = {"head": "", "interface": "", "stored": "", "variant": ""}
"""What a module has besides."""


def test_parameters_are_what_is_printed() -> None:
    texts: dict[tuple[str, Parameters], set[str]] = defaultdict(set)
    parameters: dict[tuple[str, str], set[Parameters]] = defaultdict(set)
    request, gpu = Request(get("vulkan")), backend("vulkan")
    graphs = (build(case, dtype) for case in all_cases() for dtype in case.dtypes)
    calls = (gpu.find(node, request) for graph in graphs for node in graph.nodes)
    for call in calls:
        if isinstance(call, ShaderCall):
            assert isinstance(call.parameters, Parameters)
            text = render(call.template, {**call.variables, **AROUND})
            texts[call.template, call.parameters].add(text)
            parameters[call.template, text].add(call.parameters)
    assert len(texts) > 100
    assert all(len(found) == 1 for found in texts.values())
    assert all(len(found) == 1 for found in parameters.values())
