"""Recorded runs: what the real compiled step releases is what was accounted; and planted faults are found."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from models_to_clip import MODELS
from oracle import distance
from recorded import SIZE, Recorder, a_run, problem, rounding, violations

import jaxdp
from jaxdp.clipping import (
    ClippedGrad,
    Clipping,
    Flat,
    Normalised,
    PerGroup,
    Quantile,
    Summing,
    _clip,
    _clipped_grad,
    _reducer,
)
from jaxdp.clipping.ghost import _sum as ghost_sum
from jaxdp.noise import Gaussian, _gaussian
from jaxdp.sampling import Draw, ShuffledSampler
from jaxdp.transforms import _privatize

SCHEMES = {
    "poisson": {},
    "replace_one": {"adjacency": "replace_one"},
    "truncated": {"sampling": "truncated_poisson", "truncated_batch_size": 11, "adjacency": "replace_special"},
    "shuffle": {"sampling": "shuffle", "adjacency": "replace_special"},
    "quantile": {"rule": Quantile(count_noise=3.0, learning_rate=0.05)},
    "per group": {"rule": PerGroup()},
    "normalised": {"rule": Normalised()},
    "whole batch at once": {"microbatch_size": None},
    "one at a time": {"microbatch_size": 1},
}


OTHERS = (
    "replace_one",
    "truncated",
    "shuffle",
    "per group",
    "normalised",
    "whole batch at once",
    "one at a time",
    "quantile",
)


@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=[pytest.mark.slow] if name in OTHERS else []) for name in SCHEMES]
)
def test_what_a_run_releases_is_what_was_accounted(scheme: str) -> None:
    loss, params, records = problem()
    assert violations(a_run(**SCHEMES[scheme]), loss, params, records, steps=60) == set()


def in_dtype(dtype: Any, problem: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    loss, params, batch = problem
    cast = lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    return loss, jax.tree.map(cast, params), jax.tree.map(cast, batch)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_any_model_releases_is_what_was_accounted(name: str, dtype: str) -> None:
    loss, params, batch = in_dtype(jnp.dtype(dtype), MODELS[name]())
    of_scalar = lambda p, x: loss(p, x).astype(jnp.float32)
    run = a_run(num_examples=6, expected_batch_size=3, steps=12, clip_norm=0.05, microbatch_size=2)
    assert violations(run, of_scalar, params, batch, steps=12, learning_rate=1e-3) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linen_dense", "linen_conv_2d_strided_dilated", "siamese_net"])
def test_what_a_float16_model_releases_is_what_was_accounted(name: str) -> None:
    loss, params, batch = in_dtype(jnp.float16, MODELS[name]())
    of_scalar = lambda p, x: loss(p, x).astype(jnp.float32)
    run = a_run(num_examples=6, expected_batch_size=3, steps=12, clip_norm=1e-4, microbatch_size=2)
    assert violations(run, of_scalar, params, batch, steps=12, learning_rate=1e-3) == set()


@pytest.mark.slow
def test_a_record_that_is_not_there_moves_what_is_released_no_more_than_accounted() -> None:
    """The neighbour has one row less: another run, compiled anew, that draws the others as before."""
    loss, params, records = problem()
    run, fewer = a_run(), a_run(num_examples=SIZE - 1, expected_batch_size=10 * (SIZE - 1) / SIZE)
    with_all, without = Recorder(run, loss, 0.01), Recorder(fewer, loss, 0.01)
    state, of_fewer = (each.step.init(params, jax.random.key(0)) for each in (with_all, without))
    seen = 0
    for _ in range(20):
        release = with_all.release(state, with_all.data(records))
        neighbour = state._replace(run=fewer, accounted=of_fewer.accounted)
        other = without.release(neighbour, without.data(records[:-1]))
        np.testing.assert_array_equal(release.drawn[:-1], other.drawn)
        moved = distance(release.noisy_sum, other.noisy_sum)
        assert moved <= run.clip_norm * (1 + 1e-5) * release.drawn[-1] + rounding(release.noisy_sum)
        seen += int(release.drawn[-1])
        state = release.after
    assert seen > 1


# Faults. Each is planted in the library, and what it must be found by is named.


def same_bits_for_leaves(patch: pytest.MonkeyPatch) -> None:
    one = _gaussian.tree_normal
    each = lambda key, tree: jax.tree.map(lambda leaf: one(key, [leaf])[0], tree)
    patch.setattr(_gaussian, "tree_normal", each)


def same_key_for_steps(patch: pytest.MonkeyPatch) -> None:
    update = Gaussian.update

    def staying(self: Any, state: Any, sums: Any, scale: Any) -> Any:
        _, counted = update(self, state, sums, scale)  # a state that doesn't count, the next step would refuse
        return update(self, state._replace(step=jnp.zeros_like(state.step)), sums, scale)[0], counted

    patch.setattr(Gaussian, "update", staying)


def constant_key(patch: pytest.MonkeyPatch) -> None:
    draw = _gaussian.tree_normal
    patch.setattr(_gaussian, "tree_normal", lambda key, tree: draw(jax.random.key(0), tree))


def in_every_draw(patch: pytest.MonkeyPatch, change: Callable[[Any, Any], Any]) -> None:
    """Changes each leaf of a draw's sum of gradients, by the number drawn."""
    of_draw = Summing.of_draw

    def changed(self: Any, params: Any, data: Any, draw: Any, *rest: Any, **how: Any) -> Any:
        sums = of_draw(self, params, data, draw, *rest, **how)
        return sums._replace(grads=jax.tree.map(lambda leaf: change(leaf, draw.size), sums.grads))

    patch.setattr(Summing, "of_draw", changed)


def divided_by_the_number_drawn(patch: pytest.MonkeyPatch) -> None:
    in_every_draw(patch, lambda leaf, drawn: leaf * (a_run().expected_batch_size / jnp.maximum(drawn, 1)))


def not_finite_for_an_empty_batch(patch: pytest.MonkeyPatch) -> None:
    in_every_draw(patch, lambda leaf, drawn: leaf / drawn * drawn)


def noise_for_a_mean_on_a_sum(patch: pytest.MonkeyPatch) -> None:
    scale = _privatize.noise_scale
    patch.setattr(_privatize, "noise_scale", lambda sigma, sensitivity: scale(sigma, sensitivity) / 10)


def noise_by_the_physical_batch(patch: pytest.MonkeyPatch) -> None:
    scale = _privatize.noise_scale
    patch.setattr(_privatize, "noise_scale", lambda sigma, sensitivity: scale(sigma, sensitivity) * 4 / 10)


def noise_at_every_micro_step(patch: pytest.MonkeyPatch) -> None:
    draw = _gaussian.tree_normal

    def several(key: Any, tree: Any) -> Any:
        draws = [draw(jax.random.fold_in(key, i), tree) for i in range(4)]
        return jax.tree.map(lambda *leaves: sum(leaves), *draws)

    patch.setattr(_gaussian, "tree_normal", several)


def no_noise_on_one_leaf(patch: pytest.MonkeyPatch) -> None:
    draw = _gaussian.tree_normal
    patch.setattr(_gaussian, "tree_normal", lambda key, tree: {**draw(key, tree), "out": jnp.zeros_like(tree["out"])})


def accounted_at_the_physical_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        jaxdp.DPSGD,
        "event_of",
        lambda self, steps: jaxdp.accounting.poisson_event(
            noise_multiplier=self.noise_multiplier, sample_rate=self.microbatch_size / self.num_examples, steps=steps
        ),
    )


def accounted_as_poisson_but_shuffled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        jaxdp.DPSGD,
        "sampler",
        lambda self, key: ShuffledSampler(
            key=key, num_examples=self.num_examples, batch_size=int(self.expected_batch_size), steps=self.steps
        ),
    )


def the_first_of_the_draw_alone(patch: pytest.MonkeyPatch) -> None:
    """A physical batch that cuts a Poisson draw without the accountant's knowledge."""
    draw = jaxdp.PoissonSampler.draw

    def cut(self: Any, step: Any) -> Draw:
        whole = draw(self, step)
        return Draw(whole.indices, jnp.minimum(whole.size, 8))

    patch.setattr(jaxdp.PoissonSampler, "draw", cut)


def tied_weights_squared_and_added(patch: pytest.MonkeyPatch) -> None:
    norm_of_sum = ghost_sum.norm_of_sum

    def without_cross_terms(uses: Any, square: Any) -> Any:
        of_each = [norm_of_sum([use], square) for use in uses]
        return _clip.Norm(*(jnp.linalg.norm(jnp.stack(norms)) for norms in zip(*of_each, strict=True)))

    patch.setattr(ghost_sum, "norm_of_sum", without_cross_terms)


def norms_in_float16(patch: pytest.MonkeyPatch) -> None:
    def underflowing(matrices: list[Any]) -> Any:
        halves = [matrix.astype(jnp.float16) for matrix in matrices]
        return jnp.sqrt(sum(jnp.sum(jnp.square(half), axis=1) for half in halves)).astype(jnp.float32)

    patch.setattr(_clip, "per_example_norms", underflowing)
    patch.setattr(ghost_sum, "norm_of_sum", lambda uses, square: _clip.Norm(*[jnp.float32(0)] * 2))


def bad_examples_let_through(patch: pytest.MonkeyPatch) -> None:
    factors = Clipping.factors
    patch.setattr(Clipping, "factors", lambda self, uppers, mask: (mask, factors(self, uppers, mask)[1]))


def no_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flat, "factors", lambda self, upper, clip_norm: jnp.ones_like(upper))


def groups_clipped_to_the_whole_norm_each(patch: pytest.MonkeyPatch) -> None:
    """And not refused, as they are where a rule gives them."""
    whole = lambda rule, params: rule.groups(params)._replace(shares=(1.0,) * len(params))
    for module in (_clip, _clipped_grad):
        patch.setattr(module, "groups_of", whole)


def padding_counted(patch: pytest.MonkeyPatch) -> None:
    """Rows of padding repeat the last example, as JAX reads beyond the end, and are taken for examples."""
    sum_at_once = ClippedGrad.sum_at_once

    def unmasked(self: Any, loss: Any, params: Any, examples: Any, *rest: Any) -> Any:
        return sum_at_once(self, loss, params, examples._replace(mask=jnp.ones_like(examples.mask)), *rest)

    patch.setattr(ClippedGrad, "sum_at_once", unmasked)
    patch.setattr(_reducer, "rows_at", lambda leaf, indices: leaf[indices])


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, dict[str, Any]]] = {
    same_bits_for_leaves: ("reuse", {}),
    same_key_for_steps: ("reuse", {}),
    constant_key: ("noise", {}),
    divided_by_the_number_drawn: ("sensitivity", {}),
    not_finite_for_an_empty_batch: ("finite", {"expected_batch_size": 1}),
    noise_for_a_mean_on_a_sum: ("noise", {}),
    noise_by_the_physical_batch: ("noise", {}),
    noise_at_every_micro_step: ("noise", {}),
    no_noise_on_one_leaf: ("noise", {}),
    accounted_at_the_physical_batch: ("draws", {}),
    accounted_as_poisson_but_shuffled: ("draws", {}),
    the_first_of_the_draw_alone: ("draws", {}),
    tied_weights_squared_and_added: ("sensitivity", {}),
    norms_in_float16: ("sensitivity", {}),
    bad_examples_let_through: ("sensitivity", {}),
    no_clipping: ("sensitivity", {}),
    groups_clipped_to_the_whole_norm_each: ("sensitivity", {"rule": PerGroup()}),
    padding_counted: ("sensitivity", {"expected_batch_size": 1, "microbatch_size": 16}),
}


@contextmanager
def planted(fault: Callable[[pytest.MonkeyPatch], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    found_by, changes = FAULTS[fault]
    loss, params, records = problem()
    with planted(fault):
        assert found_by in violations(a_run(**changes), loss, params, records, steps=60)


def test_noise_in_the_accumulation_loop_is_refused() -> None:
    loss, _, _ = problem()
    with pytest.raises(jaxdp.UsageError, match="micro-steps would get noise of its own"):
        a_run().make_step(loss, optax.MultiSteps(optax.sgd(0.1), 4).gradient_transformation())


@pytest.mark.slow
def test_a_state_of_another_run_is_refused_and_can_be_continued_with_a_ledger_of_both() -> None:
    loss, params, records = problem()
    run, quieter = a_run(steps=5), a_run(steps=9, noise_multiplier=0.9)
    first, second = (each.make_step(loss, optax.sgd(0.01), self_check=False) for each in (run, quieter))
    state = first.init(params, jax.random.key(0))
    for _ in range(3):
        state, _ = first(state, records)
    with pytest.raises(jaxdp.UsageError, match=r"noise_multiplier: 1\.2, 0\.9.*continue_from"):
        second(state, records)
    old_keys = jax.random.key_data(state.keys.noise)
    state = second.continue_from(state, jax.random.key(0))  # even the first run's key gives other noise
    assert not np.array_equal(jax.random.key_data(state.keys.noise), old_keys)
    state, _ = second(state, records)
    assert [entry.event for entry in state.ledger.entries] == [run.event_of(3), quieter.event_of(1)]
    both = state.ledger.epsilon(delta=1e-5).epsilon
    assert both > run.epsilon(delta=1e-5, steps=3)
    special = a_run(adjacency="replace_special").make_step(loss, optax.sgd(0.01), self_check=False)
    with pytest.raises(jaxdp.UsageError, match="under one adjacency"):
        special.continue_from(state, jax.random.key(1))
    with pytest.raises(jaxdp.UsageError, match="another optimizer"):
        a_run().make_step(loss, optax.adam(0.01), self_check=False).continue_from(state, jax.random.key(1))


def test_a_model_with_batch_statistics_does_not_pass_in_silence() -> None:
    import flax.linen as nn

    model = nn.BatchNorm(use_running_average=False)
    variables = model.init(jax.random.key(0), jnp.ones((2, 3)))
    loss = lambda params, x: jnp.sum(model.apply({**variables, "params": params}, x[None]))
    with pytest.raises(Exception, match="batch_stats"):
        jaxdp.clipped_grad(loss, clip_norm=1.0)(variables["params"], jnp.ones((4, 3)))


@pytest.mark.slow
def test_an_epsilon_below_one_release_is_not_claimed_for_more() -> None:
    """More steps never cost less, by any accountant, and none costs nothing."""
    run = a_run(steps=4)
    for name in run.accountants:
        spent = [run.epsilon(delta=1e-5, accountant=name, steps=made) for made in range(5)]
        assert spent[0] == 0
        assert all(a < b for a, b in itertools.pairwise(spent))
        assert math.isfinite(spent[-1])
