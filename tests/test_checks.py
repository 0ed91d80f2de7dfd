"""Checks of single numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import UsageError, _checks


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), np.float64(2)])
def test_numbers_of_any_concrete_type_become_plain_floats(value: Any) -> None:
    assert type(_checks.real("x", value, "fix")) is float
    assert _checks.count("x", value, "fix") == 2
    assert type(_checks.count("x", value, "fix")) is int


@pytest.mark.parametrize("value", ["2", None, True, 1j, np.complex64(1), np.ones(2), jnp.float32(2), [2.0]])
def test_what_is_not_one_plain_real_number_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="x=.* is not a plain number.*the fix"):
        _checks.real("x", value, "the fix")


def test_a_traced_number_is_refused() -> None:
    with pytest.raises(UsageError, match="x is traced"):
        jax.jit(lambda x: _checks.positive("x", x, "fix"))(1.0)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_positive_refuses_the_rest(value: float) -> None:
    with pytest.raises(UsageError):
        _checks.positive("x", value, "fix")


def test_count_refuses_fractions() -> None:
    with pytest.raises(UsageError, match="whole number"):
        _checks.count("x", 1.5, "fix")


@pytest.mark.parametrize(("value", "examples"), [(0.0, None), (1.0, None), (-1e-5, None), (1e-3, 1000), (0.2, 9)])
def test_a_delta_outside_its_range_or_not_below_one_over_n_is_refused(value: float, examples: int | None) -> None:
    with pytest.raises(UsageError, match="delta="):
        _checks.delta(value, examples)


def test_one_of_lists_what_is_known() -> None:
    with pytest.raises(UsageError, match="method='magic' is not known; choose one of these: a, b"):
        _checks.one_of("method", "magic", ("b", "a"))
