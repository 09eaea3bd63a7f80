"""One multiply-add and shift, where found, gives gemmlowp's outputs for every sum in range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.codegen.kernels.c.requantization import Requantization


@st.composite
def requantizations(draw: st.DrawFn) -> Requantization:
    """Up to four channels with ranges short enough to try every sum."""
    channels = draw(st.integers(1, 4))
    base = draw(st.integers(-2, 22))

    def each(strategy: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(strategy, min_size=channels, max_size=channels))

    lowest = np.asarray(each(st.integers(-(2**22), 2**10)), np.int64)
    zero_point = draw(st.integers(-128, 127))
    low = draw(st.sampled_from((-128, zero_point)))
    return Requantization(
        np.asarray(each(st.integers(2**30, 2**31 - 1) | st.just(0)), np.int64),
        -np.asarray(each(st.integers(base, base + 4)), np.int64),
        lowest,
        lowest + draw(st.integers(0, 40_000)),
        zero_point,
        low,
        draw(st.integers(low, 127)),
    )


@given(requantizations())
def test_scaling_equals_two_roundings(requantization: Requantization) -> None:
    scaling = requantization.scaling
    if scaling is None:
        return
    assert (scaling.multipliers < 2**31).all()
    count = int((requantization.highest - requantization.lowest)[0]) + 1
    sums = requantization.lowest + np.arange(count)[:, None]
    found = (sums * scaling.multipliers + scaling.offsets) >> scaling.shift
    found = np.clip(found, requantization.low, requantization.high)
    np.testing.assert_array_equal(found, requantization.outputs(sums))


@pytest.mark.parametrize("shifts", [(-7, -7), (-6, -9), (-3, -8)])
def test_rectified_channels_of_any_shift_are_served(shifts: tuple[int, int]) -> None:
    multipliers = np.asarray([1_518_500_250, 2_147_000_001], np.int64)
    lowest, highest = np.full(2, -(2**20)), np.full(2, 2**20)
    requantization = Requantization(
        multipliers, np.asarray(shifts, np.int64), lowest, highest, -128, -128, 127
    )
    assert requantization.scaling is not None


def test_rounding_away_from_zero_on_both_sides_is_not() -> None:
    """Ties at negative outputs round down, which one addition and a floor cannot do too."""
    multipliers, shifts = np.asarray([1_518_500_250]), np.asarray([-7])
    lowest, highest = np.asarray([-(2**15)]), np.asarray([2**15])
    requantization = Requantization(multipliers, shifts, lowest, highest, 0, -128, 127)
    assert requantization.scaling is None
