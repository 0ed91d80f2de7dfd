"""One key handed to two of all that take a key: no words are drawn twice."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import audit, mechanisms, noise, pate, sampling
from jaxdp.clipping import Quantile
from jaxdp.commands.pate._release import release
from jaxdp.data._scaling import estimated_bounds
from jaxdp.models import augmented, distorted, erased
from jaxdp.noise._keys import Domain
from jaxdp.noise.draws import _threefry
from jaxdp.pate._shards import shards

RUN = jaxdp.DPSGD(num_examples=6, expected_batch_size=2, steps=3, clip_norm=1.0, noise_multiplier=1.0)
EVERY = {"num_examples": 6, "steps": 3}
VOTES = np.array([[90, 10], [20, 80]])
STEP = RUN.make_step(lambda params, x: params * x, optax.sgd(0.1))
RESPONSE = mechanisms.RandomizedResponse(epsilon=1.0, categories=3)


class _EnoughSeenError(Exception):
    pass


def _stop(*_: Any, **__: Any) -> Any:
    raise _EnoughSeenError


def _noisy_sum(transform: Any, updates: Any, **extra: Any) -> None:
    transform.update(updates, transform.init(jnp.zeros(2)), jnp.zeros(2), **extra)


ENTRIES: dict[str, Callable[[Any], Any]] = {
    "a program of one's own": lambda key: [
        jax.random.bits(each) for each in (key, *jax.random.split(key, 9), *map(jax.random.fold_in, [key] * 9, range(9)))
    ],
    "PoissonSampler": lambda key: sampling.PoissonSampler(key=key, sampling_rate=0.5, **EVERY).draw(1),
    "TruncatedPoissonSampler": lambda key: sampling.TruncatedPoissonSampler(
        key=key, sampling_rate=0.9, truncated_batch_size=1, **EVERY
    ).draw(1),
    "ShuffledSampler": lambda key: sampling.ShuffledSampler(key=key, batch_size=2, **EVERY).draw(1),
    "privatize": lambda key: _noisy_sum(RUN.privatize(key), jnp.ones(2), sensitivity=1.0),
    "Quantile": lambda key: Quantile(expected_batch_size=2.0).advance(
        Quantile(expected_batch_size=2.0).init(1.0, key), jnp.float32(1)
    ),
    "the losses' rng": lambda key: [
        jax.random.bits(each)
        for each in jaxdp.clipped_grad(_loss_that_returns_its_key, clip_norm=1.0, has_aux=True)(
            jnp.ones(2), jnp.ones((3, 2)), rng=key
        ).aux
    ],
    "a run": lambda key: STEP.init(jnp.ones(2), key),
    "a run that goes on": lambda key: STEP.continue_from(STEP.init(jnp.ones(2), jax.random.key(1)), key),
    "standard_normal": lambda key: noise.standard_normal(key, (3,)),
    "tree_normal": lambda key: noise.tree_normal(key, [jnp.ones(3), jnp.ones(4)]),
    "standard_laplace": lambda key: noise.standard_laplace(key, (3,)),
    "Laplace": lambda key: mechanisms.Laplace(epsilon=1.0, sensitivity=1)(1.0, key=key),
    "Gaussian": lambda key: mechanisms.Gaussian(noise_multiplier=1.0, sensitivity=1)(1.0, key=key),
    "RandomizedResponse": lambda key: RESPONSE([1, 2], key=key),
    "Exponential": lambda key: mechanisms.Exponential(epsilon=1.0, sensitivity=1)([1.0, 2.0], key=key),
    "ReportNoisyMax": lambda key: mechanisms.ReportNoisyMax(epsilon=1.0, sensitivity=1)([1.0, 2.0], key=key),
    "NoisyMean": lambda key: mechanisms.NoisyMean(epsilon=1.0, lower=0, upper=1, num_records=9)(np.ones(9), key=key),
    "NoisyHistogram": lambda key: mechanisms.NoisyHistogram(epsilon=1.0, edges=(0, 1, 2))(np.ones(9), key=key),
    "MultiplicativeWeights": lambda key: mechanisms.MultiplicativeWeights(epsilon=2.0, rounds=2, num_records=9)(
        [4, 5], np.eye(2), key=key
    ),
    "rows of a synthetic table": lambda key: mechanisms.CategoricalTable(sizes=(2, 3)).sample(np.ones(6), 4, key=key),
    "bounds of a table": lambda key: estimated_bounds(np.ones((900, 1)), 1.0, key),
    "shards": lambda key: shards(6, 2, key),
    "train_teachers": lambda key: pate.train_teachers(
        _stop, _stop, (np.ones((4, 1)), np.zeros(4, int)), num_teachers=2, optimizer=optax.sgd(0.1), epochs=1,
        batch_size=1, key=key,
    ),
    "aggregation": lambda key: [
        pate.gaussian_noisy_max(VOTES, sigma=1.0, key=key),
        pate.laplace_noisy_max(VOTES, gamma=1.0, key=key),
        pate.confident_noisy_max(VOTES, threshold=50, sigma_threshold=1.0, sigma_max=1.0, key=key),
    ],
    "labels of a command": lambda key: release(
        np.zeros((50, 4), np.int32), np.arange(4), pate.GaussianNoisyMax(sigma=9.0), num_classes=2, delta=1e-5, key=key
    ),
    "train_student": lambda key: pate.train_student(
        _stop, _stop, jnp.ones((2, 3)), np.array([0, 1]), optimizer=optax.sgd(0.1), steps=1, key=key,
        mildly=_stop, strongly=_stop,
    ),
    "train_shadows": lambda key: audit.train_shadows(
        _stop, _stop, (np.ones((4, 1)), np.zeros(4, int)), num_shadows=4, optimizer=optax.sgd(0.1), epochs=1,
        batch_size=1, key=key,
    ),
    "gradient_canaries": lambda key: audit.gradient_canaries(RUN, _stop, optax.sgd(0.1), {}, np.ones(2), key=key),
    "distorted": lambda key: distorted(key, jnp.zeros((28, 28, 1), jnp.uint8)),
    "erased": lambda key: erased(key, jnp.zeros((28, 28, 1))),
    "augmented": lambda key: augmented(lambda params, example: jnp.sum(example[0]), 2)(0.0, (jnp.zeros((9, 9, 1)), 0), rng=key),
}  # fmt: skip


def _loss_that_returns_its_key(params: Any, example: Any, *, rng: Any) -> Any:
    return jnp.sum(params * example), jax.random.key_data(rng)


@pytest.fixture(scope="module")
def words() -> tuple[dict[str, set[tuple[int, ...]]], set[int]]:
    """Of each entry the keys from which it draws, and the numbers below 2^31 that were folded into any."""
    drawn: dict[str, set[tuple[int, ...]]] = {}
    folded: set[int] = set()
    with pytest.MonkeyPatch.context() as patch, jax.disable_jit(), jax.debug_key_reuse(False):

        def seen(name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
            def spy(key: Any, *args: Any, **kwargs: Any) -> Any:
                if not isinstance(key, jax.core.Tracer):
                    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
                    drawn[name].add(tuple(np.asarray(data).ravel().tolist()))
                return draw(key, *args, **kwargs)

            return spy

        fold_in = jax.random.fold_in

        def fold(key: Any, data: Any) -> Any:
            if isinstance(data, int) and data >= 2**31 - 256:
                folded.add(data)
            return fold_in(key, data)

        patch.setattr(jax.random, "fold_in", fold)
        patch.setattr(_threefry, "threefry", lambda key, x, y: (x + key[0], y + key[1]))  # slow without a compiler
        originals = {draw: getattr(jax.random, draw) for draw in ("bits", "uniform", "permutation", "split", "randint")}
        for name, entry in ENTRIES.items():
            drawn[name] = set()
            for draw, original in originals.items():
                patch.setattr(jax.random, draw, seen(name, original))
            with suppress(_EnoughSeenError):
                entry(jax.random.key(7))
    return drawn, folded


OF_NO_NOISE = {"a program of one's own", "the losses' rng", "distorted", "erased", "augmented"}
WITHIN = {"labels of a command"}  # whose keys are the command's own


@pytest.mark.parametrize("name", sorted(ENTRIES.keys() - OF_NO_NOISE - WITHIN))
def test_a_key_by_which_other_keys_may_draw_the_same_is_refused(name: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=r"'rbg'.*jax\.random\.key\(seed, impl='threefry2x32'\)"):
        ENTRIES[name](jax.random.key(7, impl="rbg"))


@pytest.mark.parametrize("name", ["standard_normal", "PoissonSampler", "a run"])
def test_no_error_and_no_sampler_shows_the_words_of_a_key(name: str, unchecked: None) -> None:
    secret = jax.random.key(1234567)
    assert "1234567" in repr(secret)
    with pytest.raises(jaxdp.UsageError, match=r"key, an array of key<fry> \[2\], is not a scalar JAX key") as found:
        ENTRIES[name](jnp.stack([secret, secret]))
    assert "1234567" not in str(found.value)
    with pytest.raises(jaxdp.UsageError, match=r"key, an array of uint32 \[2\], is not a scalar JAX key") as found:
        ENTRIES[name](jax.random.key_data(secret))
    assert "1234567" not in str(found.value)
    assert "1234567" not in repr(RUN.sampler(secret))


def test_there_are_such_keys() -> None:
    first, *others = (jax.random.key(seed, impl="rbg") for seed in range(3))
    with jax.debug_key_reuse(False):
        drawn = [jax.vmap(jax.random.bits)(jnp.stack([first, other]))[1] for other in others]
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_keys_from_entropy_are_such_as_noise_is_drawn_by_whatever_jaxs_own_are() -> None:
    with jax.default_prng_impl("rbg"):
        step = RUN.make_step(lambda params, x: params * x, optax.sgd(0.1))
        step(step.init(jnp.float32(1), jaxdp.key_from_entropy()), np.ones(6, np.float32))


@pytest.mark.slow
def test_each_draws_from_keys_that_are_concrete(words: Any) -> None:
    assert [name for name, keys in words[0].items() if not keys] == []


@pytest.mark.slow
def test_one_key_in_two_places_gives_no_words_twice(words: Any) -> None:
    drawn = words[0]
    assert [pair for pair in itertools.combinations(drawn, 2) if drawn[pair[0]] & drawn[pair[1]]] == []


@pytest.mark.slow
def test_every_domain_is_used(words: Any) -> None:
    assert words[1] == {domain.value for domain in Domain}


def test_no_domain_has_a_number_that_anything_is_counted_by() -> None:
    assert min(Domain) >= 2**31 - 256
    assert max(Domain) < 2**31
