"""What the real compiled step releases, recorded and held against what is accounted.

A run is made once. At each of its states the same step is then made again, from the same parameters and with the same draw,
on a neighbouring data set (with the same noise: what remains of the difference is what the neighbour's record moved) and on
the same data with another noise key (what remains is noise). `violations` names each thing that is not as
`run.event` says. Statistical checks have fixed seeds and a false-alarm rate of 1e-7 each where those are changed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting as dp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats
from oracle import distance, norm_of

import jaxdp

FALSE_ALARM = 1e-7
_COMPARED = 12  # steps that are made again on neighbouring data and with other noise; of all the draws are recorded
_ENOUGH = 100  # values of a leaf, from which two draws of noise can be told apart


@dataclass(frozen=True)
class Release:
    """What one step gave away: the noisy sum, float64, and who was in the batch, [n]."""

    noisy_sum: Any
    drawn: np.ndarray
    after: Any

    @property
    def is_finite(self) -> bool:
        return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.noisy_sum))


class Recorder:
    """The real step of a run, on any data of its size."""

    def __init__(
        self,
        run: jaxdp.DPSGD,
        loss: Callable[..., Any],
        learning_rate: float,
        place: Callable[[Any], Any] | None = None,
    ) -> None:
        def with_traces(params: Any, example: Any) -> Any:
            record, index, weight = example
            return loss(params, record) * weight, jnp.zeros(run.num_examples).at[index].set(1.0)

        def update(means: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            del state, params
            return jax.tree.map(lambda mean: -learning_rate * mean, means), means

        keeps_what_it_sees = optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)
        self.run, self._place = run, place or (lambda data: data)
        self.step = run.make_step(with_traces, keeps_what_it_sees, has_aux=True, self_check=False)

    def data(self, records: Any, blank: int | None = None, swapped: int | None = None) -> Any:
        """The training data where they are to be; one record may be blanked (its gradient is NaN) or exchanged for its
        opposite."""
        weights = np.ones(self.run.num_examples, np.float32)
        if blank is not None:
            weights[blank] = np.nan
        if swapped is not None:
            weights[swapped] = -1.0
        return self._place((records, jnp.arange(self.run.num_examples), jnp.asarray(weights)))

    def release(self, state: Any, data: Any) -> Release:
        donated = ("params", "opt_state", "rule_state", "noise_state")
        copied = state._replace(**{name: jax.tree.map(jnp.copy, getattr(state, name)) for name in donated})
        after, metrics = self.step(copied, data)
        size = int(metrics.examples)
        drawn = np.rint(np.asarray(metrics.aux, np.float64) * size) if size else np.zeros(self.run.num_examples)
        batch = self.run.expected_batch_size
        return Release(jax.tree.map(lambda mean: np.asarray(mean, np.float64) * batch, after.opt_state), drawn, after)


def clip_norm_at(run: jaxdp.DPSGD, state: Any) -> float:
    return run.clip_norm if state.rule_state is None else float(state.rule_state.clip_norm)


def violations(
    run: jaxdp.DPSGD,
    loss: Callable[..., Any],
    params: Any,
    records: Any,
    *,
    steps: int,
    learning_rate: float = 0.01,
    place: Callable[[Any], Any] | None = None,
) -> set[str]:
    """What is not as accounted: of "finite", "copies", "sensitivity", "noise", "reuse", "draws".

    `place` says where data are to be, on several devices; parameters are where they are given.
    """
    with jax.debug_key_reuse(False):  # which this finds by what is released
        return _violations(Recorder(run, loss, learning_rate, place), params, records, steps)


def _violations(recorder: Recorder, params: Any, records: Any, steps: int) -> set[str]:
    run = recorder.run
    data = recorder.data(records)
    state = recorder.step.init(params, jax.random.key(0))
    states, releases = [], []
    for _ in range(steps):
        states.append(state)
        releases.append(recorder.release(state, data))
        state = releases[-1].after
        if not releases[-1].is_finite:
            return {"finite"}
        if not all(map(_copies_agree, jax.tree.leaves((state.params, state.opt_state)))):
            return {"copies"}
    found = set()
    if not _distances_hold(recorder, records, states, releases):
        found.add("sensitivity")
    noise = [
        _noise(recorder, data, state, release) for state, release in zip(states[:_COMPARED], releases, strict=False)
    ]
    if not _noise_is_accounted(run, states, noise):
        found.add("noise")
    if _noise_is_reused(noise):
        found.add("reuse")
    if not _draws_are_accounted(run, np.array([release.drawn for release in releases])):
        found.add("draws")
    return found


def _copies_agree(leaf: jax.Array) -> bool:
    """Whether devices that have the same part of an array have the same."""
    parts: dict[str, bytes] = {}
    return all(
        parts.setdefault(str(shard.index), each) == each
        for shard in leaf.addressable_shards
        for each in [np.asarray(shard.data).tobytes()]
    )


def rounding(a: Any) -> float:
    """By how much float32 rounding of a noisy sum, added up and divided once, can move it."""
    return 2.0**-22 * norm_of(a)


def _distances_hold(recorder: Recorder, records: Any, states: Sequence[Any], releases: Sequence[Release]) -> bool:
    run = recorder.run
    times = 2.0 if run.adjacency == "replace_one" else 1.0
    for state, release in zip(states[:_COMPARED], releases, strict=False):
        limit = times * clip_norm_at(run, state) * (1 + 1e-5) + rounding(release.noisy_sum)
        for victim in np.flatnonzero(release.drawn)[-3:]:
            changed = {"swapped": int(victim)} if run.adjacency == "replace_one" else {"blank": int(victim)}
            other = recorder.release(state, recorder.data(records, **changed))
            if not other.is_finite or distance(release.noisy_sum, other.noisy_sum) > limit:
                return False
    return True


def _noise(recorder: Recorder, data: Any, state: Any, release: Release) -> Any:
    """Noise of the accounted standard deviation in units of the clip norm, and of a quantile's count in examples."""
    other_key = jax.random.fold_in(state.keys.noise, 10**6)
    changed = state._replace(
        keys=state.keys._replace(noise=other_key), noise_state=state.noise_state._replace(key=other_key)
    )
    if state.rule_state is not None:
        changed = changed._replace(rule_state=state.rule_state._replace(key=jax.random.fold_in(other_key, 1)))
    other = recorder.release(changed, data)
    scale = np.sqrt(2) * clip_norm_at(recorder.run, state)
    noise = {"sum": jax.tree.map(lambda a, b: (a - b) / scale, release.noisy_sum, other.noisy_sum), "count": None}
    if state.rule_state is not None:
        rule = recorder.run.rule
        fractions = [-np.log(float(each.after.rule_state.clip_norm)) / rule.learning_rate for each in (release, other)]
        noise["count"] = (fractions[0] - fractions[1]) * recorder.run.expected_batch_size / np.sqrt(2)
    return noise


def _has_deviation(values: Any, deviation: float) -> bool:
    values = np.concatenate([np.ravel(value) for value in values])
    law = scipy.stats.chi2(len(values))
    statistic = float(np.square(values / deviation).sum())
    return min(law.cdf(statistic), law.sf(statistic)) > FALSE_ALARM / 2


def _noise_is_accounted(run: jaxdp.DPSGD, states: Sequence[Any], noise: Sequence[Any]) -> bool:
    accounted = _innermost(run.event).noise_multiplier
    of_sum = accounted
    if isinstance(run.rule, jaxdp.clipping.Quantile):
        count_noise = run.rule.count_noise or math.nan
        if not _has_deviation([each["count"] for each in noise], count_noise):
            return False
        of_sum = (accounted**-2 - (2.0 * float(count_noise)) ** -2) ** -0.5
    leaves = zip(*(jax.tree.leaves(each["sum"]) for each in noise), strict=True)
    return all(_has_deviation(leaf, of_sum) for leaf in leaves)


def _noise_is_reused(noise: Sequence[Any]) -> bool:
    vectors = [np.ravel(leaf) for each in noise for leaf in jax.tree.leaves(each["sum"]) if np.size(leaf) >= _ENOUGH]
    for size in {len(vector) for vector in vectors}:
        same = np.array([vector for vector in vectors if len(vector) == size])
        lengths = np.linalg.norm(same, axis=1)
        if (lengths == 0).any():
            return True
        correlations = np.abs((same / lengths[:, None]) @ (same / lengths[:, None]).T)[np.triu_indices(len(same), 1)]
        if (correlations > 6 / np.sqrt(size)).any():
            return True
    return False


def _draws_are_accounted(run: jaxdp.DPSGD, drawn: np.ndarray) -> bool:
    """Whether who was drawn, [steps, n], looks as the event says."""
    event = _sampled(run.event)
    if drawn.max(initial=0) > 1:
        return False
    steps, size = drawn.shape
    sizes = drawn.sum(1)
    if isinstance(event, dp.GaussianDpEvent):  # without sampling: nobody more often than the event counts
        return bool((drawn.sum(0) <= run.event.count).all())
    if isinstance(event, dp.TruncatedSubsampledGaussianDpEvent):
        law = scipy.stats.binom(event.dataset_size, event.sampling_probability)
        expected = sum(law.pmf(k) * min(k, event.truncated_batch_size) for k in range(size + 1)) / size
        return bool(sizes.max() <= event.truncated_batch_size) and _share_is(drawn, expected)
    rate = event.sampling_probability
    if rate == 1:
        return bool(drawn.all())
    spread = float(np.square(sizes - size * rate).sum() / (size * rate * (1 - rate)))
    law = scipy.stats.chi2(steps)
    return _share_is(drawn, rate) and bool(min(law.cdf(spread), law.sf(spread)) > FALSE_ALARM / 2)


def _share_is(drawn: np.ndarray, rate: float) -> bool:
    return bool(scipy.stats.binomtest(int(drawn.sum()), drawn.size, rate).pvalue > FALSE_ALARM)


def _sampled(event: Any) -> Any:
    return event.event if isinstance(event, dp.SelfComposedDpEvent) else event


def _innermost(event: Any) -> Any:
    while not hasattr(event, "noise_multiplier"):
        event = event.event
    return event


# The run on which most of it is seen.

SIZE = 40


def shared_weight(params: Any, x: jax.Array) -> jax.Array:
    """A weight that two layers share, and gradients of all lengths."""
    hidden = jnp.tanh(x @ params["shared"])
    return jnp.vdot(hidden @ params["shared"], params["out"]) + jnp.vdot(x @ params["shared"], params["out"])


def problem(size: int = SIZE) -> tuple[Callable[..., Any], Any, Any]:
    """Records from 1e-3 to 1e3 in length, and two leaves of more than 100 entries."""
    rng = np.random.default_rng(5)
    scales = 10.0 ** rng.uniform(-3.0, 3.0, (size, 1))
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    params = {"shared": jnp.asarray(normal(12, 12)), "out": jnp.ones(12), "more": jnp.zeros((12, 12))}
    loss = lambda p, x: shared_weight(p, x) + jnp.vdot(p["more"], jnp.outer(x, x))
    return loss, params, jnp.asarray((normal(size, 12) * scales).astype(np.float32))


def a_run(**changes: Any) -> jaxdp.DPSGD:
    usual = {
        "num_examples": SIZE,
        "expected_batch_size": 10,
        "steps": 60,
        "clip_norm": 0.7,
        "noise_multiplier": 1.2,
        "microbatch_size": 4,
    }
    return jaxdp.DPSGD(**{**usual, **changes})
