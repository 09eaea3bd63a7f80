"""Accuracy of exponentials, logarithms and similar functions, and equal bits on every machine.

The oracles are numpy and Python's `math` in double precision.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from smelt.codegen.text.helpers import preamble
from smelt.ir import Array, DType, Graph, Node, Op, Origin, TensorType, Value, verify
from smelt.ops.core.softmax import LogSoftmax, Softmax
from smelt.ops.core.unary import Unary
from tests.support.graphs import SETUPS, Member, run_together

INF = math.inf


def _logistic(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return lambda x: np.asarray([function(v) for v in x.tolist()], np.float64)


def _gelu(x: Array) -> Array:
    return np.asarray([0.5 * v * math.erfc(-v * math.sqrt(0.5)) for v in x.tolist()])


LIMITS: dict[str, tuple[Callable[[Array], Array], float, float, float]] = {
    "exp_float": (np.exp, 1.0, -INF, INF),
    "expm1_float": (np.expm1, 1.0, -INF, 0.0),
    "tanh_float": (np.tanh, 2.0, -INF, INF),
    "logistic_float": (_logistic, 2.5, -INF, INF),
    "log_float": (np.log, 1.0, 0.0, INF),
    "softplus_float": (lambda x: np.logaddexp(x, 0), 2.0, -INF, INF),
    "erf_float": (_each(math.erf), 2.0, -INF, INF),
}
"""By function: its definition, the allowed error in units in the last place, and its range."""

BUILDS = {
    f"{compiler} {level}{' ' + marker if marker else ''}": (compiler, level, marker)
    for compiler in ("gcc", "clang")
    for level in ("-O0", "-O2", "-O3")
    for marker in ("", "SMELT_VECTORS")
}

_LOOP = """
{marker} void all_{name}(const float *input, float *output, int32_t count);
{marker} void all_{name}(const float *input, float *output, int32_t count) {{
    for (int32_t i = 0; i < count; i += 16) {{
        float results[16];
        for (int32_t lane = 0; lane < 16; ++lane) {{
            results[lane] = {name}(input[i + lane]);
        }}
        for (int32_t lane = 0; lane < 16; ++lane) {{
            output[i + lane] = results[lane];
        }}
    }}
}}

void {name}_of_all(const float *input, float *output, int32_t count);
void {name}_of_all(const float *input, float *output, int32_t count) {{
    all_{name}(input, output, count);
}}
"""

NAMES = (*LIMITS, "gelu_float", "mish_float")


def build(folder: Path, compiler: str, level: str, marker: str) -> ctypes.CDLL:
    """Compile a library of the functions in loops."""
    before = preamble({*NAMES, "SMELT_VECTORS"})
    text = "\n".join([*before.helpers, *(_LOOP.format(name=n, marker=marker) for n in NAMES)])
    headers = "".join(f"#include <{h}>\n" for h in ("stdint.h", *before.headers))
    (folder / "all.c").write_text(headers + text)
    flags = ["-std=c99", level, "-ffp-contract=off", "-fPIC", "-shared", "-Wall", "-Wextra"]
    flags += ["-Werror", "-pedantic", "-Wconversion"]
    command = [compiler, *flags, "all.c", "-o", "all.so", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "all.so"))


def computed(library: ctypes.CDLL, name: str, x: Array) -> Array:
    """Return the function's results in single precision."""
    y = np.empty_like(x)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y)]
    getattr(library, f"{name}_of_all")(*pointers, ctypes.c_int32(x.size))
    return y


def numbers() -> Array:
    """Return every exponent with either sign, a million random bits, and common values."""
    rng = np.random.default_rng(8)
    exponents = np.arange(512, dtype=np.uint32)[:, None] << 23
    mantissas = np.concatenate([np.arange(4), [0x3FFFFF, 0x7FFFFF], rng.integers(0, 1 << 23, 58)])
    bits = [
        (exponents | mantissas.astype(np.uint32)).ravel(),
        rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32),
    ]
    near = [rng.normal(size=1 << 18) * scale for scale in (1, 10, 50)]
    return np.concatenate(
        [*(b.view(np.float32) for b in bits), *(n.astype(np.float32) for n in near)]
    )


def bits_of(y: Array) -> Array:
    """Return the bits, with the same value for every NaN."""
    return np.where(np.isnan(y), np.float32(np.nan), y).astype(np.float32).view(np.uint32)


@cache
def wanted(name: str) -> Array:
    with np.errstate(all="ignore"):
        return LIMITS[name][0](numbers().astype(np.float64))


def units_off(found: Array, exact: Array) -> Array:
    """Return the distance in units in the last place, also of subnormals and infinities."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(np.float32).max))
        off = np.abs(found.astype(np.float64) - exact) / unit.astype(np.float64)
        return np.where(found == rounded, np.minimum(np.nan_to_num(off, posinf=0.0), 0.5), off)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ctypes.CDLL]:
    return {key: build(tmp_path_factory.mktemp("build"), *how) for key, how in BUILDS.items()}


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("name", LIMITS)
def test_functions_are_accurate(libraries: Mapping[str, ctypes.CDLL], name: str) -> None:
    _, limit, low, high = LIMITS[name]
    x = numbers()
    found = computed(libraries["gcc -O2 SMELT_VECTORS"], name, x)
    inside = (x >= low) & (x <= high)
    off = units_off(found[inside], wanted(name)[inside])
    worst = int(np.argmax(off))
    assert off[worst] <= limit, (x[inside][worst], found[inside][worst])
    if low == -INF:
        assert np.isnan(found[np.isnan(x)]).all()


def test_gelu_and_mish_near_their_tails(libraries: Mapping[str, ctypes.CDLL]) -> None:
    x = np.linspace(-12, 12, 1 << 16, dtype=np.float32)
    exact = x.astype(np.float64)
    mish = exact * np.tanh(np.logaddexp(exact, 0))
    for name, right in (("gelu_float", _gelu(exact)), ("mish_float", mish)):
        found = computed(libraries["gcc -O2 SMELT_VECTORS"], name, x)
        np.testing.assert_allclose(found, right, rtol=5e-7, atol=2e-7, err_msg=name)
    found = computed(libraries["gcc -O2 SMELT_VECTORS"], "gelu_float", x)[x < -3]
    np.testing.assert_allclose(found, _gelu(exact)[x < -3], rtol=0, atol=2e-8)


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("exp_float", 0.0, 1.0),
        ("exp_float", -INF, 0.0),
        ("exp_float", INF, INF),
        ("exp_float", 88.73, INF),
        ("tanh_float", INF, 1.0),
        ("tanh_float", -INF, -1.0),
        ("tanh_float", -0.0, -0.0),
        ("logistic_float", -INF, 0.0),
        ("logistic_float", INF, 1.0),
        ("log_float", 0.0, -INF),
        ("log_float", -0.0, -INF),
        ("log_float", INF, INF),
        ("log_float", -1.0, math.nan),
        ("log_float", -INF, math.nan),
        ("softplus_float", INF, INF),
        ("softplus_float", -INF, 0.0),
        ("erf_float", -0.0, -0.0),
        ("erf_float", -INF, -1.0),
        ("gelu_float", INF, INF),
        ("gelu_float", -3e38, -0.0),
    ],
)
def test_special_values_of_functions(
    libraries: Mapping[str, ctypes.CDLL], name: str, x: float, y: float
) -> None:
    found = computed(libraries["gcc -O2"], name, np.full(16, x, np.float32))
    np.testing.assert_array_equal(bits_of(found), bits_of(np.full(16, y, np.float32)))


@pytest.mark.thorough
@pytest.mark.parametrize("build_name", [key for key in BUILDS if key != "gcc -O0"])
def test_every_build_has_the_same_bits(
    libraries: Mapping[str, ctypes.CDLL], build_name: str
) -> None:
    x = numbers()
    for name in NAMES:
        plain = bits_of(computed(libraries["gcc -O0"], name, x))
        found = bits_of(computed(libraries[build_name], name, x))
        np.testing.assert_array_equal(found, plain, f"{name}, {build_name}")


# --- through networks, on devices ----------------------------------------------------------------

KINDS = (
    *("exp", "tanh", "logistic", "erf", "gelu", "gelu_tanh", "softplus", "log", "mish"),
    *("swish", "elu", "celu", "selu"),
)


def operators() -> Iterator[tuple[Op, tuple[int, ...]]]:
    for kind in KINDS:
        yield Unary(kind, 1.25, 1.5), (1024,)
    for shape in ((5, 10), (7, 37), (6, 3)):
        yield Softmax(), shape
        yield LogSoftmax(), shape


@cache
def members() -> tuple[Member, ...]:
    rng = np.random.default_rng(9)
    found: list[Member] = []
    for op, shape in operators():
        x = Value("x", TensorType(shape, DType.FLOAT32))
        (type_,) = op.infer([x.type])
        node = Node(op, (x,), (Value("y", type_),), Origin(op.name, 0))
        graph = verify(Graph("one_node", (x,), node.outputs, (node,)), "building a test")
        samples = [(rng.normal(size=shape).astype(np.float32) * scale,) for scale in (1, 8)]
        samples.append((np.full(shape, -100.0, np.float32) + samples[0][0],))
        found.append(Member(graph, samples))
    return tuple(found)


@cache
def on_host() -> list[list[tuple[Array, ...]]]:
    return run_together(members(), SETUPS["host"])


@pytest.mark.quick(every=2)
@pytest.mark.qemu
@pytest.mark.parametrize("setup", ["m0", "m4", pytest.param("m55", marks=pytest.mark.slow)])
def test_devices_compute_the_same_bits_as_the_host(setup: str) -> None:
    for member, here, there in zip(
        members(), on_host(), run_together(members(), SETUPS[setup]), strict=True
    ):
        for (mine,), (other,) in zip(here, there, strict=True):
            np.testing.assert_array_equal(bits_of(other), bits_of(mine), f"{member} on {setup}")
