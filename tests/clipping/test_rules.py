"""Clip rules: each against a loop over examples, its sensitivity by measurement, and what the adaptive one costs."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models_to_clip import MODELS
from oracle import distance, loop, norm_of

import jaxdp
from jaxdp.clipping import Flat, Groups, Normalised, PerGroup, Quantile

SLOW = pytest.mark.slow
CLIP = 0.3
RULES = {
    "flat": Flat(),
    "a_group_a_leaf": PerGroup(),
    "two_groups": PerGroup(
        labels=lambda params: jax.tree.unflatten(
            jax.tree.structure(params), ["odd" if i % 2 else "even" for i in range(len(jax.tree.leaves(params)))]
        ),
        weights={"odd": 1, "even": 3},
    ),
    "normalised": Normalised(stability=0.05),
}
MODELS_TO_SCALE = [
    pytest.param("linen_dense_over_tokens", marks=SLOW),
    pytest.param("linen_lstm", marks=SLOW),  # its kernels are joined before they are used
    pytest.param("tied_embedding_language_model", marks=SLOW),
    pytest.param("siamese_net"),
]


@pytest.fixture(autouse=True)
def _as_users_run() -> Any:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def in_numpy(name: str, grad: Any) -> list[float]:
    """The factor of each leaf, from the rule's formula."""
    leaves = jax.tree.leaves(grad)
    norm = norm_of(grad)
    if name == "normalised":
        return [CLIP / (norm + 0.05)] * len(leaves)
    if name == "flat":
        return [min(1.0, CLIP / norm)] * len(leaves)
    group = [i if name == "a_group_a_leaf" else i % 2 for i in range(len(leaves))]
    share = {0: 3 / 4, 1: 1 / 4} if name == "two_groups" else dict.fromkeys(group, 1 / len(leaves))
    if len(set(group)) == 1:
        share = {0: 1.0}
    limits = {g: CLIP * math.sqrt(share[g]) for g in set(group)}
    norms = {g: norm_of([leaf for leaf, own in zip(leaves, group, strict=True) if own == g]) for g in set(group)}
    return [min(1.0, limits[g] / norms[g]) if norms[g] else 1.0 for g in group]


@functools.cache
def jitted(name: str, rule: str, method: str = "ghost") -> Callable[..., Any]:
    """One compiled function for all tests of a rule on a model."""
    loss, *_ = MODELS[name]()
    return jax.jit(jaxdp.clipped_grad(loss, clip_norm=CLIP, rule=RULES[rule], method=method))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ghost", pytest.param("vmap", marks=SLOW)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MODELS_TO_SCALE)
def test_a_rule_gives_the_sum_of_a_loop_over_examples(name: str, rule: str, method: str) -> None:
    loss, params, batch = MODELS[name]()
    mask = np.array([True, True, False, True, True, True])
    expected, norms = loop(loss, params, batch, mask, CLIP, lambda grad: in_numpy(rule, grad))
    out = jitted(name, rule, method)(params, batch, mask=jnp.asarray(mask))
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5)
    assert distance(out.grads, expected) <= 1e-5 * 5 * CLIP
    assert float(out.sensitivity) == np.float32(CLIP)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ghost", pytest.param("vmap", marks=SLOW)])
@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        ("flat", jnp.float32),
        pytest.param("quantile", jnp.float32, marks=SLOW),
        pytest.param("flat", jnp.bfloat16, marks=SLOW),
        *(pytest.param(rule, jnp.float32, marks=SLOW) for rule in RULES if rule != "flat"),
        *(pytest.param(rule, jnp.bfloat16, marks=SLOW) for rule in (*RULES, "quantile") if rule != "flat"),
    ],
)
def test_removing_an_example_moves_the_sum_by_at_most_the_sensitivity(rule: str, method: str, dtype: Any) -> None:
    loss, params, batch = MODELS["siamese_net"]()
    cast = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf).astype(dtype)), tree)
    # Lengths over thirty orders of magnitude, from far below the clip norm to far above it.
    scales = jnp.array([1e-15, 1e-3, 1.0, 30.0, 1e8, 1e15], jnp.float32)
    scaled = lambda params, example: loss(params, example[0]).astype(jnp.float32) * example[1]
    params, batch = cast(params), (cast(batch), scales)
    adaptive = Quantile(expected_batch_size=6)
    state = adaptive.init(CLIP, jax.random.key(0)) if rule == "quantile" else None
    grad_fn = jax.jit(
        jaxdp.clipped_grad(scaled, clip_norm=CLIP, rule=adaptive if state else RULES[rule], method=method)
    )
    whole = grad_fn(params, batch, rule_state=state)
    assert np.max(whole.norms) > CLIP > np.min(whole.norms)
    for i in range(6):
        without = grad_fn(params, batch, mask=jnp.asarray(np.arange(6) != i), rule_state=state)
        assert distance(whole.grads, without.grads) <= float(whole.sensitivity) * (1 + 1e-5)


@pytest.mark.slow_but("flat-nan")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("rule", RULES)
def test_a_bad_example_contributes_exactly_zero_under_every_rule(rule: str, bad: float) -> None:
    _, params, batch = MODELS["siamese_net"]()
    poisoned = np.array(batch)
    poisoned[2] = bad
    grad_fn, all_of_them = jitted("siamese_net", rule), np.ones(6, bool)
    with_bad = grad_fn(params, jnp.asarray(poisoned), mask=jnp.asarray(all_of_them))
    without = grad_fn(params, batch, mask=jnp.asarray(np.arange(6) != 2))
    jax.tree.map(np.testing.assert_array_equal, with_bad.grads, without.grads)
    assert not np.isfinite(with_bad.norms[2])


def test_the_groups_limits_add_up_to_the_joint_clip_norm() -> None:
    rule = PerGroup(labels={"a": "x", "b": {"c": "y"}}, weights={"x": 9, "y": 16})
    groups = rule.groups({"a": 0.0, "b": {"c": [0.0, 0.0]}})
    assert groups.of_leaf == (0, 1, 1)
    np.testing.assert_allclose(groups.shares, (0.6, 0.8))


def test_leaves_that_are_joined_but_clipped_apart_are_formed_and_explain_says_so() -> None:
    loss = lambda p, x: jnp.sum(jnp.tanh(x @ jnp.concatenate([p["a"], p["b"]], axis=1)))
    params, batch = {"a": jnp.ones((64, 64)), "b": jnp.ones((64, 64))}, jnp.ones((8, 2, 64))
    how = lambda rule: jaxdp.clipped_grad(loss, clip_norm=1.0, rule=rule).explain(params, batch).leaves[0]
    assert how(Flat()).how == "rows"
    assert how(PerGroup()).how == "formed"
    assert "clipped apart" in how(PerGroup()).why


# --- the adaptive rule


def adaptive(**changes: Any) -> Quantile:
    return Quantile(**{"quantile": 0.6, "learning_rate": 0.3, "count_noise": 2.0, "expected_batch_size": 10, **changes})


@pytest.mark.slow
def test_a_step_of_the_clip_norm_is_the_papers() -> None:
    rule, norms = adaptive(), jnp.array([0.5, 1.0, 2.0, jnp.nan, 0.1])
    mask = jnp.array([True, True, True, True, False])
    state = rule.init(1.0, jax.random.key(3))
    noise = 2.0 * float(jaxdp.noise.standard_normal(jax.random.fold_in(state.key, 0), ()))
    fraction = (0.5 + 0.5 - 0.5 - 0.5 + noise) / 10 + 0.5
    after = rule.update(state, norms, mask)
    np.testing.assert_allclose(after.clip_norm, math.exp(-0.3 * (fraction - 0.6)), rtol=1e-5)
    assert int(after.step) == 1


def test_the_counts_noise_is_not_the_sums_even_with_its_key() -> None:
    key = jax.random.key(3)
    state = adaptive().init(1.0, key)
    first = jaxdp.noise.tree_normal(jax.random.fold_in(key, 0), jnp.zeros(()))
    assert float(jaxdp.noise.standard_normal(jax.random.fold_in(state.key, 0), ())) != float(first)


def test_a_zero_gradient_stays_zero_where_it_is_normalised() -> None:
    rule = Normalised(stability=1e-25)
    grad_fn = jax.jit(jaxdp.clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm=1e15, rule=rule))
    out = grad_fn(jnp.ones(3), jnp.zeros((2, 3)))
    np.testing.assert_array_equal(out.grads, jnp.zeros(3))


@dataclass(frozen=True)
class Stretched(Flat):
    """Short gradients are scaled up: a type of its own, of which nothing is known."""

    def factors(self, upper: Any, clip_norm: Any) -> Any:
        return clip_norm / (upper + jnp.float32(1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Normalised(), Stretched()])
@pytest.mark.parametrize("rows", [(), (4,), (3, 4)])
def test_cotangents_that_a_factor_makes_infinite_where_the_operand_is_zero_move_nobody(rule: Any, rows: Any) -> None:
    def loss(w: Any, example: Any) -> Any:
        x, y = example
        if len(rows) < 2:
            return jnp.sum((x @ w) * y)
        return jnp.sum(
            jax.lax.scan(lambda total, each: (total + jnp.sum((each[0] @ w) * each[1]), None), 0.0, (x, y))[0]
        )

    x, y = np.ones((3, *rows, 64), np.float32), np.ones((3, *rows, 1), np.float32)
    x[1], y[1] = 0.0, 3e37
    if rows:
        x[1, 0], y[1, 0] = 1e-4, 1e-3
    for method in ("auto", "ghost", "vmap"):
        grad_fn = jaxdp.clipped_grad(loss, clip_norm=1.0, rule=rule, method=method)
        with_it = grad_fn(jnp.ones((64, 64)), (x, y))
        without = grad_fn(jnp.ones((64, 64)), (x, y), mask=np.array([True, False, True]))
        assert distance(with_it.grads, without.grads) <= 1.0001


@pytest.mark.slow
def test_the_clip_norm_finds_the_quantile() -> None:
    rule = adaptive(quantile=0.75, count_noise=5.0, expected_batch_size=1000)
    norms = jnp.asarray(np.random.default_rng(0).lognormal(size=1000), jnp.float32)
    state, update = rule.init(100.0, jax.random.key(0)), jax.jit(rule.update)
    for _ in range(200):
        state = update(state, norms, jnp.ones(1000, jnp.bool_))
    assert abs(float(jnp.mean(norms <= state.clip_norm)) - 0.75) < 0.02


def test_adding_an_example_moves_the_count_by_one_half() -> None:
    norms, mask = jnp.array([0.5, 3.0, jnp.inf]), jnp.array([True, True, True])
    count = jax.jit(adaptive().observe)
    whole = count(norms, mask, jnp.float32(1))
    for i in range(3):
        without = count(norms, jnp.asarray(np.arange(3) != i), jnp.float32(1))
        assert abs(float(whole - without)) == 0.5


def test_sum_and_count_together_cost_what_the_run_says() -> None:
    import dp_accounting as dp

    run = jaxdp.DPSGD(
        num_examples=1000,
        expected_batch_size=100,
        steps=50,
        clip_norm=1.0,
        noise_multiplier=1.1,
        rule=Quantile(count_noise=3.0),
    )
    both = dp.ComposedDpEvent([dp.GaussianDpEvent(run.noise_multiplier_of_sum), dp.GaussianDpEvent(3.0 / 0.5)])
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, both), 50)
    composed = dp.rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    np.testing.assert_allclose(run.epsilon(delta=1e-5), composed, rtol=1e-6)
    assert run.noise_multiplier_of_sum > 1.1
    assert f"{run.noise_multiplier_of_sum:.6g}" in run.statement(delta=1e-5)
    assert "0.5 quantile" in run.statement(delta=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("microbatch_size", [None, pytest.param(4, marks=SLOW)])
def test_a_run_noises_each_sum_at_the_clip_norm_of_its_step(microbatch_size: int | None) -> None:
    import optax

    data = jnp.asarray(np.random.default_rng(0).normal(size=(60, 3)) * 5, jnp.float32)
    loss = lambda w, x: jnp.sum(w * x)
    run = jaxdp.DPSGD(
        num_examples=60,
        expected_batch_size=20,
        steps=8,
        clip_norm=1.0,
        noise_multiplier=0.5,
        rule=Quantile(learning_rate=0.5),
        microbatch_size=microbatch_size,
    )
    step = run.make_step(loss, optax.sgd(1.0), self_check=False)
    state = step.init(jnp.zeros(3), jax.random.key(0))
    sampler, grad_fn, noise = run.sampler(state.keys.sampling), run.clipped_grad(loss), run.privatize(state.keys.noise)
    grad_fn, update = jax.jit(grad_fn), jax.jit(noise.update)
    rule_state, noise_state, params, expected = state.rule_state, noise.init(jnp.zeros(3)), jnp.zeros(3), []
    for batch, mask in sampler.take(data):
        out = grad_fn(params, batch, mask=mask, rule_state=rule_state)
        assert float(out.sensitivity) == float(rule_state.clip_norm)
        means, noise_state = update(out.grads, noise_state, sensitivity=out.sensitivity)
        params, rule_state = params - jnp.asarray(means), out.rule_state
        expected.append((params, rule_state.clip_norm))
    for params, clip_norm in expected:
        state, _ = step(state, data)
        np.testing.assert_allclose(state.params, params, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.rule_state.clip_norm, clip_norm, rtol=1e-6)
    assert float(rule_state.clip_norm) > 1.5


# --- rules from outside the package


@dataclass(frozen=True)
class Smooth:
    """Scales by C / sqrt(C² + |g|²), and borrows from Flat what has to do with a state or a run."""

    def check(self, clip_norm: float) -> None:
        if math.isinf(clip_norm):
            raise jaxdp.UsageError("Smooth: give a finite clip norm")

    def factors(self, upper: Any, clip_norm: Any) -> Any:
        return clip_norm * (1 - 2.0**-20) / (jnp.hypot(upper, clip_norm))

    def in_words(self, clip_norm: float) -> str:
        return f"scaled smoothly to an L2 norm below {clip_norm:g}"

    groups, in_run, noise_multiplier_of_sum = Flat.groups, Flat.in_run, Flat.noise_multiplier_of_sum
    init, clip_norm_now, observe, advance = Flat.init, Flat.clip_norm_now, Flat.observe, Flat.advance


class Shrunk(NamedTuple):
    clip_norm: Any
    seen: Any


@dataclass(frozen=True)
class Shrinking:
    """Flat clipping to a norm that shrinks at every step, whatever the data; it counts what it saw, for this test alone."""

    rate: float = 0.5
    batch: float | None = None

    def check(self, clip_norm: float) -> None:
        assert math.isfinite(clip_norm)

    def in_run(self, expected_batch_size: float) -> "Shrinking":
        return dataclasses.replace(self, batch=expected_batch_size)

    def in_words(self, clip_norm: float) -> str:
        return f"clipped to {clip_norm:g}, times {self.rate:g} at every step"

    def init(self, clip_norm: float, key: Any) -> Shrunk:
        return Shrunk(jnp.float32(clip_norm), jnp.float32(0))

    def clip_norm_now(self, state: Any, clip_norm: float) -> Any:
        return state.clip_norm

    def observe(self, norms: Any, mask: Any, clip_norm: Any) -> Any:
        return {"seen": jnp.sum(mask.astype(jnp.float32))}

    def advance(self, state: Shrunk, observed: Any) -> Shrunk:
        return Shrunk(state.clip_norm * jnp.float32(self.rate), state.seen + observed["seen"])

    groups, factors, noise_multiplier_of_sum = Flat.groups, Flat.factors, Flat.noise_multiplier_of_sum


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_a_rule_from_outside_clips(method: str) -> None:
    loss, params, batch = MODELS["siamese_net"]()
    smooth = lambda grad: [CLIP / math.hypot(CLIP, norm_of(grad))] * len(jax.tree.leaves(grad))
    expected, _ = loop(loss, params, batch, [True] * 6, CLIP, smooth)
    out = jax.jit(jaxdp.clipped_grad(loss, clip_norm=CLIP, rule=Smooth(), method=method))(params, batch)
    assert distance(out.grads, expected) <= 1e-5 * 6 * CLIP


@dataclass(frozen=True)
class Divided(Flat):
    """Divides the leaves as it is told."""

    given: Any

    def groups(self, params: Any) -> Any:
        return self.given


@pytest.mark.parametrize(
    "given",
    [
        Groups((0, 1), (1.0, 1.0)),
        Groups((0, 0), (1.1,)),
        Groups((0,), (1.0,)),
        Groups((0, 0, 0), (1.0,)),
        Groups((0, 2), (0.6, 0.8)),
        Groups((0, -1), (0.6, 0.8)),
        Groups((0, 0), (0.6, 0.8)),
        Groups((0, 1), (1.0, 0.0)),
        Groups((0, 1), (0.6, math.nan)),
        ((0, 0), (1.0,)),
    ],
)
@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_groups_that_together_are_longer_than_the_clip_norm_are_refused(given: Any, method: str) -> None:
    loss = lambda p, x: jnp.sum(p["a"] * x) + jnp.sum(p["b"] * x)
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=CLIP, rule=Divided(given), method=method)
    with pytest.raises(jaxdp.UsageError, match=r"divides 2 leaves as .* squares of all shares add up to 1"):
        grad_fn({"a": jnp.ones(3), "b": jnp.ones(3)}, np.ones((4, 3), np.float32))


@dataclass(frozen=True)
class Wrong(Flat):
    """Factors of which gradients would be longer than the clip norm."""

    which: int

    def factors(self, upper: Any, clip_norm: Any) -> Any:
        longer = (2 * clip_norm / upper, (clip_norm / upper).astype(jnp.bfloat16), jnp.where(upper > 1, 1.0, clip_norm))
        return longer[self.which]


@pytest.mark.slow_but("ghost-0")
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_whatever_factors_a_rule_gives_nobody_moves_the_sum_by_more_than_the_clip_norm(which: int, method: str) -> None:
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=CLIP, rule=Wrong(which), method=method))
    for row in np.random.default_rng(0).normal(size=(20, 1, 5)).astype(np.float32):
        assert norm_of(grad_fn(jnp.zeros((5, 4)), 3 * row).grads) <= CLIP


@pytest.mark.slow
def test_rules_from_outside_make_steps_with_a_state_and_a_statement() -> None:
    import optax

    data = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3)) * 5, jnp.float32)
    for rule in (Smooth(), Shrinking()):
        run = jaxdp.DPSGD(
            num_examples=40,
            expected_batch_size=20,
            steps=8,
            clip_norm=1.0,
            noise_multiplier=0.5,
            rule=rule,
            microbatch_size=4,
        )
        assert run.rule == (rule if rule == Smooth() else Shrinking(batch=20))
        assert run.rule.in_words(1.0) in run.statement(delta=1e-5)
        step = run.make_step(lambda w, x: jnp.sum(w * x), optax.sgd(1.0))
        state = step.init(jnp.zeros(3), jax.random.key(0))
        drawn = 0
        for _ in range(3):
            state, metrics = step(state, data)
            drawn += int(metrics.examples)
        assert state.rule_state == (None if rule == Smooth() else Shrunk(0.125, drawn))


class NoHash(Smooth):
    __hash__ = None  # pyright: ignore[reportAssignmentType]


@pytest.mark.usefixtures("unchecked")
def test_what_lacks_a_part_of_the_contract_is_refused_by_the_name_of_what_is_missing() -> None:
    methods = {name: value for name, value in vars(Flat).items() if name[0] != "_" and name not in ("observe", "init")}
    without = type("Without", (), methods)
    for make in (lambda rule: jaxdp.clipped_grad(abs, clip_norm=1.0, rule=rule), a_run):
        with pytest.raises(jaxdp.UsageError, match="it has no init, observe"):
            make(without())
        with pytest.raises(jaxdp.UsageError, match="it is a class"):
            make(Flat)
        with pytest.raises(jaxdp.UsageError, match="can't be hashed"):
            make(NoHash())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: jaxdp.clipping.check_rule("flat", 1.0), "is not a clip rule"),
        (lambda: jaxdp.clipped_grad(abs, clip_norm=math.inf, rule=Smooth()), "Smooth: give a finite clip norm"),
        (lambda: jaxdp.clipped_grad(abs, clip_norm=math.inf, rule=PerGroup()), "clip_norm=inf"),
        (lambda: jaxdp.clipped_grad(abs, clip_norm=1.0, rule=Quantile()), "expected_batch_size is missing"),
        (lambda: Quantile(quantile=1.0), "quantile=1.0"),
        (lambda: Quantile(count_noise=0), "count_noise=0"),
        (lambda: Normalised(stability=0), "stability=0"),
        (lambda: Normalised(stability=1e-46), "between 1e-30"),
        (lambda: adaptive().init(-1.0, jax.random.key(0)), "clip_norm=-1.0"),
        (lambda: adaptive().init(math.inf, jax.random.key(0)), "clip_norm=inf"),
        (lambda: a_run(Quantile(count_noise=0.5)), "give more than 0.55 examples"),
        (lambda: a_run(Quantile(expected_batch_size=11)), "is not the run's"),
        (lambda: call(Quantile(expected_batch_size=2)), "needs its state"),
        (lambda: call(Flat(), rule_state=3), "has no state"),
        (lambda: call(PerGroup(labels={"a": "x"})), "don't fit"),
        (lambda: call(PerGroup(labels="x", weights={"y": 1})), "lacks the labels"),
        (lambda: call(PerGroup(weights={"y": 1})), r"lacks the labels \['0'.*places of the leaves; give labels="),
        (lambda: call(PerGroup(labels="x", weights={"x": -1})), "must be above 0"),
    ],
)
def test_bad_input_is_refused_with_the_fix(make: Any, words: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=words):
        make()


def a_run(rule: Any) -> jaxdp.DPSGD:
    return jaxdp.DPSGD(
        num_examples=100, expected_batch_size=10, steps=1, clip_norm=1.0, noise_multiplier=1.1, rule=rule
    )


def call(rule: Any, **keywords: Any) -> Any:
    return jaxdp.clipped_grad(lambda w, x: w * x, clip_norm=1.0, rule=rule)(jnp.float32(1), jnp.ones(2), **keywords)


def test_rules_by_group_are_equal_where_they_name_the_same_groups() -> None:
    by_function = lambda params: jax.tree.map(lambda _: "all", params)
    make = lambda: PerGroup(labels={"a": "x", "b": {"c": "y"}}, weights={"x": 9.0, "y": 16.0})
    assert make() == make() == copy.deepcopy(make())
    assert hash(make()) == hash(make())
    assert PerGroup(labels=by_function) == PerGroup(labels=by_function)
    others = (PerGroup(), PerGroup(labels=by_function), PerGroup(labels={"a": "x", "b": {"c": "y"}}), Flat())
    assert all(make() != other for other in others)
