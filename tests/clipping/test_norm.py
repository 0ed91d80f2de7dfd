"""Norms of numbers of every size, which are taken in one pass where that is safe and in two where it isn't."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxdp._platform import compiling_for
from jaxdp.clipping._norm import added_up, per_example_norms, relative_error_bound

SIZES = [(1,), (33,), (7, 40)]
norms_of = jax.jit(per_example_norms)


def rows_of(seed: int, exponents: list[int]) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    scales = np.float64(2) ** np.array(exponents)
    leaves = [random.standard_normal((len(exponents), *size)) * random.integers(0, 2) for size in SIZES]
    return [(leaf * scales.reshape(-1, *(1 for _ in leaf.shape[1:]))).astype(np.float32) for leaf in leaves]


def true_norms(leaves: list[np.ndarray]) -> np.ndarray:
    flat = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    return np.linalg.norm(np.where(np.abs(flat) < 2.0**-126, 0, flat).astype(np.float64), axis=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(-110, 110), min_size=3, max_size=3))
def test_norms_are_near_whatever_the_size(seed: int, exponents: list[int]) -> None:
    leaves = rows_of(seed, exponents)
    np.testing.assert_allclose(norms_of(leaves), true_norms(leaves), rtol=relative_error_bound(leaves), atol=2.0**-120)


@pytest.mark.parametrize("one_of_them", [0.0, 2.0**-70, 2.0**-100, 2.0**70, 2.0**120])
def test_one_of_another_size_is_near_and_so_are_those_beside_it(one_of_them: float) -> None:
    leaf = np.ones((5, 100), np.float32)
    leaf[2] *= one_of_them
    np.testing.assert_allclose(norms_of([leaf]), np.array([1, 1, one_of_them, 1, 1]) * 10, rtol=1e-5)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])  # in one pass where that will do, and always in two
def test_near_where_squares_leave_the_range_no_norm_is_too_small(platform: str) -> None:
    found_of = jax.jit(lambda leaf: per_example_norms([leaf]))
    for lowest in (-75, -63, -45, -40):
        leaf = np.full((64, 4096), np.float32(2) ** np.linspace(lowest - 8, lowest, 64, dtype=np.float32)[:, None])
        with compiling_for(platform):
            found = np.asarray(found_of(leaf), np.float64)
        true = np.linalg.norm(leaf.astype(np.float64), axis=1)
        assert (true <= found * (1 + relative_error_bound([leaf]))).all()
        np.testing.assert_allclose(found, true, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("bad", "expected"), [(np.nan, np.nan), (np.inf, np.inf), (-np.inf, np.inf)])
def test_what_is_no_number_shows(bad: float, expected: float) -> None:
    leaf = np.ones((3, 50), np.float32)
    leaf[1, 7] = bad
    np.testing.assert_allclose(norms_of([leaf]), np.array([np.sqrt(50), expected, np.sqrt(50)]), rtol=1e-6)
    large = np.full((2, 50), 3e38, np.float32)
    np.testing.assert_array_equal(norms_of([large]), [np.inf, np.inf])


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_parts_of_many_shapes_are_added_up_each(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(3, 1), (3, 1, 5), (3, 2, 5), (3, 1, 4, 2), *[(3, 1, 5)] * 70, (3, 2), (0, 1, 5), (0, 1)]
    parts = [jnp.asarray(np.random.default_rng(i).normal(size=shape), jnp.float32) for i, shape in enumerate(shapes)]
    if together:
        monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arrays, tpu, **_: tpu(*arrays))
        eqns = jax.make_jaxpr(added_up)(parts).eqns
        assert (
            sum(eqn.primitive.name == "reduce" for eqn in eqns) == 6
        )  # 71 of one shape are three: not too many for one kernel
    for total, part in zip(added_up(parts), parts, strict=True):
        assert total.shape == part.shape[:2]
        np.testing.assert_allclose(total, np.sum(part, axis=tuple(range(2, part.ndim))), rtol=1e-6, atol=1e-6)
