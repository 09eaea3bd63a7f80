"""Shaders' parameters contain exactly what they print: equal parameters mean equal GLSL."""

from __future__ import annotations

import re
from collections import defaultdict

from smelt.codegen.backends.vulkan.calls import ShaderCall
from smelt.codegen.backends.vulkan.glsl_functions import blocks, called_in, needs
from smelt.codegen.backends.vulkan.shaders import ModuleParameters
from smelt.codegen.lower.backend import backend
from smelt.codegen.lower.kernel import Parameters, Request
from smelt.codegen.text.render import render
from smelt.ops import all_cases
from smelt.ops.case import build
from smelt.targets import get
from tests.support.template_variables import given, looked_up

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def test_parameters_contain_exactly_what_is_printed() -> None:
    texts: dict[tuple[str, Parameters], set[str]] = defaultdict(set)
    parameters: dict[tuple[str, str], set[Parameters]] = defaultdict(set)
    request, gpu = Request(get("vulkan")), backend("vulkan")
    graphs = (build(case, dtype) for case in all_cases() for dtype in case.dtypes)
    calls = (gpu.find(node, request) for graph in graphs for node in graph.nodes)
    for call in calls:
        if isinstance(call, ShaderCall):
            assert looked_up(call.template) <= given(ModuleParameters, type(call.parameters))
            text = render(call.template, ModuleParameters(), call.parameters)
            texts[call.template, call.parameters].add(text)
            parameters[call.template, text].add(call.parameters)
    assert len(texts) > 100
    assert all(len(found) == 1 for found in texts.values())
    assert all(len(found) == 1 for found in parameters.values())


def test_shared_functions_list_what_they_call() -> None:
    for name, text in blocks().items():
        called = called_in(COMMENT.sub("", text)) - {name}
        assert set(needs(name)) == called, name
        assert list(needs(name)) == [other for other in blocks() if other in called], name
