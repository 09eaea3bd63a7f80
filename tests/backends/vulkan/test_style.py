"""Layout of the C files and shaders of GPU networks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.backends.test_cases import build, pairs
from tests.support.c_style import COLUMNS, bare_macros, layout_changes, without_comments
from tests.support.graphs import compile_graph
from tests.support.projects import digits
from tests.support.vulkan_tools import ON_GPU, requires_vulkan

pytestmark = requires_vulkan

OPERATORS = sorted({type(case.op).__name__ for case, _ in pairs()})


@pytest.mark.parametrize("cpu_fallback", [False, True])
def test_the_c_files_of_a_gpu_keep_the_style(cpu_fallback: bool) -> None:
    options = replace(ON_GPU, backends=("vulkan", "c"), cpu_fallback=cpu_fallback)
    for name, text in digits(options).with_firmware().project.files.items():
        if name.endswith((".c", ".h")):
            assert not layout_changes(name, text, kernels=True)
            assert not bare_macros(without_comments(text))
            assert not [line for line in text.splitlines() if len(line) > COLUMNS]


def test_lines_of_shaders_in_float16_fit_into_100_columns() -> None:
    options = replace(ON_GPU, backends=("vulkan", "c"), float16=True)
    for name, text in digits(options, "digits_float32").project.files.items():
        long = [line for line in text.splitlines() if len(line) > COLUMNS]
        assert not (name.endswith(".comp") and long), f"{name}: {long}"


@pytest.mark.quick(every=12)
@pytest.mark.parametrize("operator", OPERATORS)
def test_lines_of_shaders_fit_into_100_columns(operator: str) -> None:
    options = replace(ON_GPU, name="net", backends=("vulkan", "c"))
    for case, dtype in pairs():
        if type(case.op).__name__ == operator:
            for name, text in compile_graph(build(case, dtype), options).project.files.items():
                long = [line for line in text.splitlines() if len(line) > COLUMNS]
                assert not (name.endswith(".comp") and long), f"{case.name} {name}: {long}"
