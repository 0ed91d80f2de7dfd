"""Small arrays in stacks come back as they were, whatever their shapes and types."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxdp._alike import Alike

SHAPES = ((), (0,), (3,), (3, 1), (1, 3), (5000,))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(("float32", "bfloat16", "int32"))), max_size=9))
def test_what_is_stacked_comes_apart_in_its_order(kinds: list[tuple[tuple[int, ...], str]]) -> None:
    leaves = [jnp.full(shape, i, dtype) for i, (shape, dtype) in enumerate(kinds)]
    for alike in (Alike.of(leaves), Alike.of(leaves, 2), Alike.of([np.asarray(leaf) for leaf in leaves])):
        assert sorted(i for group in alike.groups for i in group) == list(range(len(leaves)))
        for found, leaf in zip(alike.apart(alike.stack(leaves)), leaves, strict=True):
            assert found.dtype == leaf.dtype
            np.testing.assert_array_equal(found, leaf)


def test_one_stack_holds_the_small_vectors_of_a_shape() -> None:
    leaves = [jnp.zeros(shape) for shape in ((3,), (5000,), (3,), (5000,), (2, 2), (2, 2))]
    assert Alike.of(leaves).groups == ((0, 2), (1,), (3,), (4,), (5,))
    assert Alike.of(leaves, 2).groups == ((0, 2), (1,), (3,), (4, 5))
