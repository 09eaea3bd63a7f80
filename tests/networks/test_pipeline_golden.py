"""Outputs of generated code equal those of TFLite Micro on every core.

Each network is tested on the host alone with all samples. Under QEMU, all single-operator networks
share one firmware, and the others are tested with few samples; `-m slow` tests all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from smelt import boards
from smelt.api.compile import compile_model
from smelt.api.options import Options
from smelt.errors import DoesNotFit
from smelt.frontend import load
from smelt.ir import Array
from smelt.proof.run import run
from tests.support.board_tools import simulable
from tests.support.golden_networks import DYNAMIC_RANGE, FLOAT, INTEGER, NOT_BY_TFLM
from tests.support.graphs import (
    LIKE_OTHERS,
    SETUPS,
    SIMULATED,
    TOLERANCE,
    Member,
    SampleOutputs,
    assert_same,
    run_together,
)
from tests.support.semihosted import outputs_of
from tests.support.shared import Network, networks, shared
from tests.support.tflite_networks import DIGITS, dequantized_weights, litert

WHOLE = tuple(pattern for pattern in INTEGER if not pattern.startswith("ops/"))
SINGLE = tuple(pattern.removeprefix("ops/") for pattern in INTEGER if pattern.startswith("ops/"))
FEW = ("random", "extreme")
"""Kinds of samples that are tested under QEMU by default, one sample of each."""
OTHER_BOARDS = tuple(
    name
    for name in boards.available()
    if boards.load(name).qemu is not None and not name.startswith("mps")
)
on_simulators = pytest.mark.parametrize("setup", SIMULATED)
on_cores = pytest.mark.parametrize(
    "setup",
    [pytest.param(s, marks=pytest.mark.slow) if s in LIKE_OTHERS else s for s in SIMULATED],
)


def expected_of(network: Network) -> Array:
    """Return the expected output of each sample."""
    engine = "litert_reference" if network.name in NOT_BY_TFLM else "tflm"
    return network.golden[f"{engine}_0"]


def members_of(network: Network, chosen: Sequence[int]) -> tuple[Member, SampleOutputs]:
    golden, imported = network.golden, load(network.model)
    inputs = [golden[f"input_{i}"] for i in range(len(imported.graph.inputs))]
    samples = [tuple(array[i] for array in inputs) for i in chosen]
    expected = expected_of(network)
    return Member(imported.graph, samples), [(expected[i],) for i in chosen]


def check(network: Network, options: Options, chosen: Sequence[int]) -> None:
    member, expected = members_of(network, chosen)
    artifact = compile_model(network.model, options)
    outputs = outputs_of(artifact, member.samples)
    assert_same(outputs, expected, str(network))


def few(network: Network) -> list[int]:
    kinds = [str(kind) for kind in network.golden["kind"]]
    return [kinds.index(kind) for kind in FEW]


@networks(*INTEGER)
def test_host_is_exact(network: Network) -> None:
    check(network, SETUPS["host"], range(16))


@pytest.mark.quick(setup=("m4",))
@pytest.mark.qemu
@on_cores
@networks(*WHOLE)
def test_core_is_exact(network: Network, setup: str) -> None:
    check(network, SETUPS[setup], few(network))


@pytest.mark.qemu
@pytest.mark.slow
@on_simulators
@networks(*WHOLE)
def test_core_is_exact_on_every_sample(network: Network, setup: str) -> None:
    check(network, SETUPS[setup], range(16))


def check_operators(options: Options, samples: int) -> None:
    """Assert that all single-operator networks, in one firmware, are exact."""
    shared("models/ops")
    tested = [Network("ops", name) for name in SINGLE]
    # All files have the kinds of samples in the same order.
    chosen = few(tested[0]) if samples == len(FEW) else range(samples)
    members, expected = zip(*(members_of(network, chosen) for network in tested), strict=True)
    found = run_together(members, options)
    for network, outputs, wanted in zip(tested, found, expected, strict=True):
        assert_same(outputs, wanted, str(network))


@pytest.mark.quick(setup=("m0", "m4"))
@pytest.mark.qemu
@on_cores
def test_operators_are_exact(setup: str) -> None:
    check_operators(SETUPS[setup], len(FEW))


@pytest.mark.qemu
@pytest.mark.slow
@on_simulators
def test_operators_are_exact_on_every_sample(setup: str) -> None:
    check_operators(SETUPS[setup], 16)


@pytest.mark.quick(network=("mlperf_tiny/kws_int8",))
@pytest.mark.parametrize("optimize", ["size", "ram"])
@networks("mlperf_tiny/kws_int8", "mlperf_tiny/ic_int8", "tflm/micro_speech_int8")
def test_host_is_exact_with_other_optimization(network: Network, optimize: str) -> None:
    options = Options(optimize="size" if optimize == "size" else "ram")
    check(network, options, few(network))


@pytest.mark.quick(setup=("m4",))
@pytest.mark.qemu
@on_simulators
@networks("mlperf_tiny/kws_int8")
def test_core_is_exact_optimized_for_size(network: Network, setup: str) -> None:
    check(network, replace(SETUPS[setup], optimize="size"), few(network))


@pytest.mark.thorough
@pytest.mark.qemu
@networks("mlperf_tiny/ic_int8")
def test_core_is_exact_with_expanded_weights(network: Network) -> None:
    check(network, replace(SETUPS["m4"], expand_weights=True), few(network))


@pytest.mark.quick(network=("tflm/hello_world_int8",))
@pytest.mark.qemu
@networks("tflm/*_int8", "mlperf_tiny/sww_int8", "ops/conv", "ops/add", "ops/fc", "ops/softmax")
def test_small_networks_are_exact_on_microbit(network: Network) -> None:
    """Unlike the boards above, QEMU's micro:bit faults at instructions that a Cortex-M0 lacks."""
    check(network, Options(board="microbit"), few(network))


@pytest.mark.quick(every=2)
@networks("mlperf_tiny/vww_int8", "mlperf_tiny/ad_int8")
def test_large_networks_do_not_fit_microbit(network: Network) -> None:
    """The weights of `ad` exceed the flash, and the input of `vww` alone exceeds the RAM."""
    short = "flash" if network.name == "ad_int8" else "arena"
    with pytest.raises(DoesNotFit, match=short) as caught:
        compile_model(network.model, Options(board="microbit"))
    assert caught.value.needed > caught.value.available > 0
    for number in (caught.value.needed, caught.value.available, caught.value.largest[0][1]):
        assert f"{number:,}" in str(caught.value)


@pytest.mark.quick(setup=("host", "m0", "m4", "m55", "sifive_e"))
@pytest.mark.qemu
@pytest.mark.parametrize("setup", ["host", *SIMULATED, *OTHER_BOARDS])
def test_digits_are_exact(setup: str) -> None:
    with np.load(DIGITS / "digits_test.npz") as data:
        images, expected = data["input_0"][:16], data["tflite_reference_0"][:16]
    options = SETUPS.get(setup, Options(board=setup))
    if options.board is not None:
        simulable(boards.load(options.board))
    artifact = compile_model(DIGITS / "digits_int8.tflite", options)
    outputs = list(run(artifact, [(image,) for image in images]).outputs)
    assert_same(outputs, [(want,) for want in expected], setup)


@pytest.mark.quick(setup=("m0",))
@pytest.mark.qemu
@on_simulators
def test_small_digits_are_exact(setup: str) -> None:
    """Use the compiler's options for size, which every toolchain must accept."""
    with np.load(DIGITS / "digits_test.npz") as data:
        images, expected = data["input_0"][:2], data["tflite_reference_0"][:2]
    options = replace(SETUPS[setup], optimize="size")
    artifact = compile_model(DIGITS / "digits_int8.tflite", options)
    outputs = list(run(artifact, [(image,) for image in images]).outputs)
    assert_same(outputs, [(want,) for want in expected], setup)


def check_floats(network: Network, options: Options, chosen: Sequence[int]) -> None:
    """Assert that outputs differ by at most 1e-5 of their range over all samples."""
    golden = network.golden
    data = network.model.read_bytes()
    expected = golden.get("litert_reference_0")
    if str(network) == DYNAMIC_RANGE:  # LiteRT uses hybrid kernels for the file itself
        plain = dequantized_weights(data)
        expected = np.stack([litert(plain, x)[0] for x in golden["input_0"]])
    assert expected is not None
    artifact = compile_model(network.model, options)
    outputs = outputs_of(artifact, [(golden["input_0"][i],) for i in chosen])
    allowed = TOLERANCE * float(np.ptp(expected))
    for i, (found,) in zip(chosen, outputs, strict=True):
        np.testing.assert_allclose(found, expected[i], rtol=0, atol=allowed, err_msg=str(network))


@pytest.mark.quick(network=("mlperf_tiny/ad_float32", "tflm/hello_world_float32"))
@networks(*FLOAT, DYNAMIC_RANGE)
def test_floats_are_close_on_the_host(network: Network) -> None:
    check_floats(network, SETUPS["host"], range(16))


@pytest.mark.quick(network=("mlperf_tiny/ad_float32",))
@pytest.mark.qemu
@networks(*FLOAT, DYNAMIC_RANGE)
def test_floats_are_close_with_an_fpu(network: Network) -> None:
    check_floats(network, SETUPS["m4"], few(network)[:1])


@pytest.mark.qemu
@pytest.mark.slow
@pytest.mark.parametrize("setup", ["m3", "m55"])
@networks(*FLOAT, DYNAMIC_RANGE)
def test_floats_are_close_on_other_cores(network: Network, setup: str) -> None:
    check_floats(network, SETUPS[setup], few(network))


@pytest.mark.quick(form=("float32", "drq"))
@pytest.mark.parametrize("form", ["float32", "f16", "drq"])
def test_float_digits_are_close(form: str) -> None:
    """`drq` is the same network with int8 weights, compared with dequantized weights."""
    model = DIGITS / f"digits_{form}.tflite"
    data = model.read_bytes()
    plain = dequantized_weights(data) if form == "drq" else data
    with np.load(DIGITS / "digits_test.npz") as arrays:
        images = arrays["images"][:16].reshape(16, 1, 8, 8, 1)
    expected = np.stack([litert(plain, image)[0] for image in images])
    outputs = run(compile_model(model), [(image,) for image in images]).outputs
    allowed = TOLERANCE * float(np.ptp(expected))
    np.testing.assert_allclose(np.stack([o[0] for o in outputs]), expected, rtol=0, atol=allowed)
