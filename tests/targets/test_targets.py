"""Targets: names, prices, compatibility, and features, which agree with the compiler."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from smelt import targets
from smelt.codegen.emit.firmware import Firmware
from smelt.errors import ConfigError
from smelt.targets import Feature, Target

CROSS_TARGETS = [target for target in targets.available() if target.cross]


def test_an_unknown_target_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"'cortex-m44'; did you mean 'cortex-m4'\?") as caught:
        targets.get("cortex-m44")
    assert "cortex-m55" in str(caught.value)
    for core in ("m4", "M4"):
        with pytest.raises(ConfigError, match=rf"'{core}'; did you mean 'cortex-m4'\?"):
            targets.get(core)


@pytest.mark.parametrize("target", targets.available(), ids=lambda target: target.name)
def test_prices_are_for_forms_of_the_backends_of_the_target(target: Target) -> None:
    """A core may use the prices of another core whose library it does not have.

    `plain` forms belong to kernels in plain C that two backends share.
    """
    sets = (*target.backends, "cmsis_nn", "plain")
    prefixes = tuple(f"{backend}_" for backend in sets)
    assert [form for form in target.prices if not form.startswith(prefixes)] == []


def test_a_core_runs_the_code_of_compatible_smaller_ones() -> None:
    m0, m4, m55 = (targets.get(f"cortex-{core}") for core in ("m0", "m4", "m55"))
    assert m55.runs(m4)
    assert m4.runs(m4)
    assert m4.runs(m0)
    assert not m4.runs(m55)
    assert not targets.get("host").runs(m4)


@pytest.mark.parametrize("target", CROSS_TARGETS, ids=lambda target: target.name)
def test_a_smaller_target_has_no_additional_feature(target: Target) -> None:
    for name in target.runs_code_of:
        assert targets.get(name).features <= target.features


@pytest.mark.parametrize(
    "target",
    [target for target in CROSS_TARGETS if target.name.startswith("cortex-")],
    ids=lambda target: target.name,
)
def test_features_agree_with_the_compiler(target: Target) -> None:
    compiler = f"{target.cross}gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"not on PATH: {compiler}")
    command = [compiler, *target.arch_flags, *target.compile_flags("speed"), "-dM", "-E", "-"]
    output = subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout
    macros = dict(line.removeprefix("#define ").split(" ", 1) for line in output.splitlines())
    floats = int(macros.get("__ARM_FP", "0"), 0)
    vectors = int(macros.get("__ARM_FEATURE_MVE", "0"), 0)
    found: dict[Feature, bool] = {
        "unaligned": "__ARM_FEATURE_UNALIGNED" in macros,
        "divide": "__ARM_FEATURE_IDIV" in macros,
        "long_multiply": int(macros["__ARM_ARCH_ISA_THUMB"]) >= 2,
        "dsp": "__ARM_FEATURE_DSP" in macros,
        "fpu": bool(floats & 4),
        "fma": "__ARM_FEATURE_FMA" in macros,
        "fpu_double": bool(floats & 8),
        "mve": bool(vectors & 1),
        "mve_float": bool(vectors & 2),
        "loops": "__ARM_FEATURE_MVE" in macros,
    }
    assert target.features == {feature for feature, there in found.items() if there}


def test_a_target_without_board_is_a_library() -> None:
    platform = targets.library_platform(targets.get("cortex-m33"))
    assert platform.firmware is None
    assert platform.memory_of("arena") is None
    assert [path for _, path in Firmware(platform).files] == [
        "Makefile",
        "CMakeLists.txt",
        "toolchain.cmake",
    ]
    assert targets.library_platform(targets.get("host")) == targets.HOST


def test_targets_are_compared_by_value() -> None:
    target = targets.get("cortex-m4")
    assert target == replace(target)
    assert target != replace(target, alignment=8)
