"""Attacks by a model's outputs and by shadow models: what SciPy's densities say of each, and shadows that are teachers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings, strategies as st

import jaxdp
from jaxdp import audit
from jaxdp.pate._teachers import Course


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(deadline=None, max_examples=30)
def test_lira_is_the_ratio_of_scipys_densities(seed: int, fix_variance: bool) -> None:
    rng = np.random.default_rng(seed)
    members = np.stack([rng.permutation(8) < 4 for _ in range(5)], axis=1)
    shadows = rng.normal(size=(8, 5)) + 2 * members
    target = rng.normal(size=5)
    found = audit.lira_scores(target, shadows, members, fix_variance=fix_variance)
    offline = audit.lira_scores(target, shadows, members, fix_variance=fix_variance, offline=True)
    groups = [[shadows[chosen[:, i], i] for i in range(5)] for chosen in (members, ~members)]
    deviations = [
        [np.std(np.concatenate([each - np.mean(each) for each in group]))] * 5
        if fix_variance
        else list(map(np.std, group))
        for group in groups
    ]
    densities = [
        scipy.stats.norm.logpdf(target, list(map(np.mean, group)), deviation)
        for group, deviation in zip(groups, deviations, strict=True)
    ]
    np.testing.assert_allclose(found, densities[0] - densities[1], rtol=1e-9, atol=1e-9)
    tails = scipy.stats.norm.cdf(target, list(map(np.mean, groups[1])), deviations[1])
    np.testing.assert_allclose(scipy.special.ndtr(offline), tails, rtol=1e-9)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.sampled_from((0.1, 3.0, 30.0, 500.0)))
@settings(deadline=None, max_examples=50)
def test_scores_of_logits_are_those_of_probabilities(seed: int, classes: int, scale: float) -> None:
    """Probabilities in so many digits that 1 - p is right where p is nearly 1: it may be exp(-5000)."""
    mpmath: Any = pytest.importorskip("mpmath")
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(3, classes)) * scale, rng.integers(0, classes, 3)
    with mpmath.workdps(200 + round(6 * scale)):
        weights = [[mpmath.exp(mpmath.mpf(float(x))) for x in row] for row in logits]
        p = [[each / mpmath.fsum(row) for each in row] for row in weights]
        of_label = [row[label] for row, label in zip(p, labels, strict=True)]
        loss = [mpmath.log(each) for each in of_label]
        entropy = [mpmath.fsum(each * mpmath.log(each) for each in row) for row in p]
        confident = [mpmath.log(each / (1 - each)) for each in of_label]
        modified = [
            (1 - row[label]) * mpmath.log(row[label])
            + mpmath.fsum(each * mpmath.log(1 - each) for i, each in enumerate(row) if i != label)
            for row, label in zip(p, labels, strict=True)
        ]
        expected = [np.array([float(each) for each in row]) for row in (loss, entropy, confident, modified)]
    found = (
        audit.loss_scores(logits, labels),
        audit.entropy_scores(logits),
        audit.confidence(logits, labels),
        audit.modified_entropy_scores(logits, labels),
    )
    for ours, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-9, atol=1e-12)


def test_confidences_of_several_models_are_those_of_each() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(4, 5, 3)), np.array([0, 1, 2, 0, 1])
    each = [audit.confidence(one, labels) for one in logits]
    np.testing.assert_array_equal(audit.confidence(logits, labels), each)


def test_probabilities_of_zero_are_no_nan() -> None:
    with np.errstate(divide="ignore"):
        logits = np.log(np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    assert audit.loss_scores(logits, [0, 2]).tolist() == [0.0, -np.inf]
    assert audit.entropy_scores(logits).tolist() == [0.0, pytest.approx(-np.log(2))]
    assert audit.modified_entropy_scores(logits, [0, 2]).tolist() == [0.0, -np.inf]


def linear_loss(params: Any, example: Any) -> Any:
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(image @ params["w"] + params["b"], label)


def init(key: jax.Array) -> Any:
    return {"w": 0.1 * jax.random.normal(key, (6, 3)), "b": jnp.zeros(3)}


COURSE: dict[str, Any] = {"optimizer": optax.sgd(0.5), "epochs": 3, "batch_size": 5}
RNG = np.random.default_rng(1)
DATA = RNG.normal(size=(41, 6)).astype(np.float32), RNG.integers(0, 3, 41).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [None, [40, 3, 7, 11, 20, 1, 2]])
def test_a_shadow_is_the_teacher_of_its_rows(candidates: list[int] | None) -> None:
    shadows = audit.train_shadows(
        linear_loss, init, DATA, num_shadows=6, key=jax.random.key(3), candidates=candidates, **COURSE
    )
    number = 41 if candidates is None else 7
    assert shadows.members.shape == (6, number)
    assert set(shadows.members.sum(axis=1)) == {number // 2}
    together = shadows.members[::2].astype(int) + shadows.members[1::2]
    assert together.max() == 1
    assert (together.sum(axis=1) == 2 * (number // 2)).all()
    assert not np.array_equal(shadows.members[0], shadows.members[2])
    rows = np.append(np.setdiff1d(np.arange(41), shadows.candidates), shadows.candidates[shadows.members[4]])
    _, of_models = jax.random.split(jaxdp.noise._keys.own_key(jax.random.key(3), jaxdp.noise._keys.Domain.SHADOWS))
    course = Course(linear_loss, init, COURSE["optimizer"], 3, 5, len(rows))
    alone = course(jax.random.split(of_models, 6)[4], jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), DATA))
    for ours, theirs in zip(jax.tree.leaves(shadows.params), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(ours[4], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_what_a_model_has_learned_by_heart_is_found_by_lira_and_not_in_one_that_has_learned_nothing() -> None:
    """Random labels, more parameters than examples: only a member can be known."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(60, 40)).astype(np.float32), rng.integers(0, 3, 60).astype(np.int32)
    wide = lambda key: {"w": 0.1 * jax.random.normal(key, (40, 3)), "b": jnp.zeros(3)}
    course: dict[str, Any] = {"optimizer": optax.sgd(0.5), "epochs": 20, "batch_size": 10}
    shadows = audit.train_shadows(linear_loss, wide, data, num_shadows=16, key=jax.random.key(0), **course)
    logits = shadows.logits(lambda params, image: image @ params["w"] + params["b"], data[0])
    assert logits.shape == (16, 60, 3)
    scored = audit.confidence(logits, data[1])
    for offline in (False, True):
        how: dict[str, Any] = {"fix_variance": True, "offline": offline}
        for target, least, most in ((scored[0], 0.9, 1.0), (rng.normal(size=60), 0.3, 0.7)):
            scores = audit.lira_scores(target, scored[1:], shadows.members[1:], **how)
            assert least < audit.attack_auroc(scores, shadows.members[0]) <= most


@pytest.mark.slow
def test_a_loss_with_randomness_and_progress() -> None:
    seen: list[int] = []
    with_rng = lambda params, example, *, rng: linear_loss(params, example) * jax.random.uniform(rng)
    shadows = audit.train_shadows(
        with_rng, init, DATA, num_shadows=4, key=jax.random.key(0), on_progress=seen.append, at_once=2, **COURSE
    )
    assert seen == [2, 4]
    assert jax.tree.leaves(shadows.params)[0].shape[0] == 4


def test_scores_of_a_callable_are_those_of_its_logits() -> None:
    params = init(jax.random.key(0))
    predict = lambda inputs: np.asarray(inputs @ params["w"] + params["b"])
    known: tuple[tuple[Any, Any], ...] = (
        ("loss", audit.loss_scores),
        ("modified-entropy", audit.modified_entropy_scores),
    )
    for attack, of_logits in known:
        found = audit.scores_of(predict, DATA[0], DATA[1], attack=attack, rows=7)
        np.testing.assert_allclose(found, of_logits(predict(DATA[0]), DATA[1]), rtol=1e-5)
    found = audit.scores_of(predict, DATA[0], DATA[1], attack="entropy")
    np.testing.assert_allclose(found, audit.entropy_scores(predict(DATA[0])), rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_shadows": 5}, "must be even, from 4"),
        ({"num_shadows": 2}, "must be even, from 4"),
        ({"num_shadows": 1e300}, "must be even, from 4"),
        ({"candidates": [0, 0, 1]}, "or not each once"),
        ({"candidates": [0, 41]}, "of data with 41"),
        ({"candidates": [3]}, "two or more"),
        ({"batch_size": 21}, "batch_size=21 exceeds the 20"),
        ({"epochs": 0}, "epochs=0"),
        ({"key": 3}, "key"),
    ],
)
def test_shadows_that_cant_be_trained_are_refused(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"num_shadows": 4, "key": jax.random.key(0), **COURSE, **change}
    with pytest.raises(jaxdp.UsageError, match=said):
        audit.train_shadows(linear_loss, init, DATA, **given)


SHADOWS, MEMBERS = np.arange(8.0).reshape(4, 2), np.array([[True, True], [True, True], [False, False], [False, False]])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1.0], SHADOWS, MEMBERS), r"target is \[1\]"),
        (([1.0, np.nan], SHADOWS, MEMBERS), "NaN or infinite"),
        (([1.0, 2.0], SHADOWS, MEMBERS.astype(int)), "int64"),
        (([1.0, 2.0], SHADOWS, np.array(MEMBERS) | np.array([False, True])), "0 shadow models had example 1 out of"),
        (([1.0, 2.0], np.ones((4, 2)), MEMBERS), "equally confident"),
        (([1.0, 2.0], 1e300 * SHADOWS, MEMBERS), "confidences of example 0 are too large"),
        (([1.0, 1e300], SHADOWS, MEMBERS), "confidences of example 1 are too large"),
    ],
)
def test_confidences_that_dont_go_together_are_refused(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        audit.lira_scores(*arguments)


@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        ([[1.0, 2.0]], [2], "from 2 to 2, and logits of 2 classes"),
        ([[1.0, 2.0]], [-1], "from -1"),
        ([[1.0, 2.0]], [0, 1], "labels are"),
        ([[1.0, 2.0]], [0.0], "float64"),
        ([[np.nan, 2.0]], [0], "no prediction"),
        ([[np.inf, 2.0]], [0], "no prediction"),
        ([[1.0]], [0], "logits are"),
        ([1.0, 2.0], [0], "logits are"),
    ],
)
def test_logits_that_are_no_predictions_are_refused(logits: Any, labels: Any, said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        audit.loss_scores(logits, labels)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("predict", "attack", "said"),
    [
        (lambda inputs: inputs[:1], "loss", "for 41 inputs"),
        (lambda inputs: inputs, "losses", "choose one of these: entropy"),
        (lambda inputs: "no", "loss", "no array"),
        (None, "loss", "predict"),
    ],
)
def test_callables_that_dont_predict_are_refused(predict: Any, attack: Any, said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        audit.scores_of(predict, DATA[0], DATA[1], attack=attack)


@pytest.mark.slow
def test_data_on_a_mesh_are_those_of_the_host() -> None:
    """Of JAX's default kind, which since 0.12 says where each axis lies."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    on_mesh = jax.device_put(DATA, jax.NamedSharding(mesh, jax.P("data")))
    how: dict[str, Any] = {"num_shadows": 4, "key": jax.random.key(0), "candidates": [1, 2, 3, 4], **COURSE}
    logits = [
        audit.train_shadows(linear_loss, init, data, **how).logits(
            lambda params, image: image @ params["w"] + params["b"], data[0]
        )
        for data in (DATA, on_mesh)
    ]
    np.testing.assert_array_equal(*logits)


@pytest.mark.slow
def test_data_of_the_other_byte_order_are_those_of_this_one() -> None:
    course = {"num_shadows": 4, "optimizer": optax.sgd(0.1), "epochs": 1, "batch_size": 8, "key": jax.random.key(0)}
    swapped = tuple(leaf.astype(leaf.dtype.newbyteorder()) for leaf in DATA)
    found, expected = (audit.train_shadows(linear_loss, init, data, **course) for data in (swapped, DATA))
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
