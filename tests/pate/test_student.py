"""The student: what it learns of answers, and of what is not answered."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import pate
from jaxdp.dpsgd._state import RunKeys
from jaxdp.models import distorted, erased
from jaxdp.noise._keys import Domain, own_key

CENTRES = np.array([[0.0, 3.0], [3.0, -2.0], [-3.0, -2.0]], np.float32)


def logits(params: Any, point: Any) -> Any:
    return jnp.tanh(point @ params["in"]) @ params["out"]


def init(key: Any) -> Any:
    first, second = jax.random.split(key)
    return {"in": jax.random.normal(first, (2, 16)), "out": 0.1 * jax.random.normal(second, (16, 3))}


def nudged(by: float) -> Any:
    return lambda key, point: point + by * jax.random.normal(key, point.shape)


HOW: dict[str, Any] = {"mildly": nudged(0.1), "strongly": nudged(0.8), "batch_size": 4, "unlabelled_batch_size": 12}


def clusters() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 3, 300)
    return (CENTRES[classes] + rng.normal(size=(300, 2))).astype(np.float32), classes.astype(np.int32)


def few_answers(classes: np.ndarray) -> np.ndarray:
    """One answer for each class, the rest unanswered."""
    labels = np.full(len(classes), -1, np.int32)
    labels[[int(np.argmax(classes == each)) for each in range(3)]] = range(3)
    return labels


def accuracy(params: Any, points: np.ndarray, classes: np.ndarray) -> float:
    return float(np.mean(np.argmax(jax.jit(jax.vmap(logits, (None, 0)))(params, points), axis=1) == classes))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fixmatch", "supervised"])
def test_a_student_learns_from_few_answers(method: str) -> None:
    points, classes = clusters()
    key = jax.random.key(0)
    params = pate.train_student(
        logits, init, points, few_answers(classes), optimizer=optax.adam(0.02), steps=150, key=key, method=method, **HOW
    )
    assert accuracy(params, points, classes) > 0.95


@pytest.mark.slow
def test_a_supervised_student_needs_no_distortions() -> None:
    points, classes = clusters()
    how = {"optimizer": optax.adam(0.02), "steps": 150, "key": jax.random.key(0), "method": "supervised"}
    assert accuracy(pate.train_student(logits, init, points, few_answers(classes), **how), points, classes) > 0.8


def one_step(step: Any, points: np.ndarray) -> Any:
    key = jax.random.key(3)
    state = step.init(init(jax.random.key(2)), key)
    return step.many(state, jnp.asarray(points), num_steps=1)


@pytest.mark.slow
def test_a_step_is_its_formula() -> None:
    points, classes = clusters()
    labels, rate, tau = few_answers(classes), 0.1, 0.4
    step = pate.StudentStep(logits, optax.sgd(rate), labels, confidence=tau, **HOW)
    state, metrics = one_step(step, points)
    params = init(jax.random.key(2))
    of_loss = RunKeys.split_from(jax.random.key(3)).loss
    rows, others, mild, weak, strong = jax.random.split(jax.random.fold_in(of_loss, 0), 5)
    answered = np.flatnonzero(labels >= 0)
    known = answered[np.asarray(jax.random.randint(rows, (4,), 0, 3))]
    chosen = np.asarray(jax.random.randint(others, (12,), 0, 300))
    seen = [HOW["mildly"](key, points[row]) for key, row in zip(jax.random.split(mild, 4), known, strict=True)]
    weakly = [HOW["mildly"](key, points[row]) for key, row in zip(jax.random.split(weak, 12), chosen, strict=True)]
    strongly = [
        HOW["strongly"](key, points[row]) for key, row in zip(jax.random.split(strong, 12), chosen, strict=True)
    ]

    belief = jax.jit(lambda params, x: jax.nn.softmax(logits(params, x)))
    beliefs = [np.asarray(belief(params, x)) for x in weakly]

    @jax.jit
    @jax.value_and_grad
    def loss(params: Any) -> Any:
        entropy = optax.softmax_cross_entropy_with_integer_labels
        total = sum(entropy(logits(params, x), labels[row]) for x, row in zip(seen, known, strict=True)) / 4
        for believed, y in zip(beliefs, strongly, strict=True):
            if believed.max() >= tau:
                total += entropy(logits(params, y), believed.argmax()) / 12
        return total

    expected_loss, grads = loss(params)
    np.testing.assert_allclose(metrics.loss[0], expected_loss, rtol=1e-5)
    expected = jax.tree.map(lambda leaf, grad: leaf - rate * grad, params, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state.params[0], expected)


@pytest.mark.slow
def test_without_confidence_nothing_is_learned_from_what_is_unanswered() -> None:
    points, classes = clusters()
    never = pate.StudentStep(logits, optax.sgd(0.1), few_answers(classes), confidence=1.1, **HOW)
    alone = pate.StudentStep(logits, optax.sgd(0.1), few_answers(classes), method="supervised", **HOW)
    ours, supervised = one_step(never, points)[0], one_step(alone, points)[0]
    # An entry near zero is a difference of larger ones: its rounding is theirs.
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7 * np.max(np.abs(b)))
    jax.tree.map(close, ours.params, supervised.params)


@pytest.mark.slow
def test_a_step_compiles_once() -> None:
    points, classes = clusters()
    traces = []

    def counted(params: Any, point: Any) -> Any:
        traces.append(1)
        return logits(params, point)

    step = pate.StudentStep(counted, optax.sgd(0.1), few_answers(classes), **HOW)
    state = step.init(init(jax.random.key(0)), jax.random.key(1))
    state, _ = step.many(state, jnp.asarray(points), num_steps=1)
    seen = len(traces)
    for _ in range(2):
        state, _ = step.many(state, jnp.asarray(points), num_steps=1)
    assert len(traces) == seen


@pytest.mark.parametrize(
    ("labels", "changes", "message"),
    [
        (np.full(300, -1), {}, "hold no answer"),
        (np.zeros(300), {}, "give whole numbers"),
        (np.zeros(20, int), {}, r"labels have shape \(20,\) for 300 inputs"),
        (np.zeros(300, int), {"steps": 0}, "steps=0 must be above 0"),
        (np.zeros(300, int), {"method": "guess"}, "method='guess' is not known"),
        (np.zeros(300, int), {"strongly": None}, "give mildly and strongly.*or method='supervised'"),
        (np.full(300, 7), {}, "labels go up to 7, and logits_fn returned"),
        (np.full(300, 2**32 + 1), {}, "labels hold 4294967297, which is no int32"),
    ],
)
def test_what_teaches_nothing_is_refused(labels: np.ndarray, changes: dict[str, Any], message: str) -> None:
    given = {"optimizer": optax.sgd(0.1), "steps": 1, "key": jax.random.key(0), **HOW} | changes
    with pytest.raises(jaxdp.UsageError, match=message):
        pate.train_student(logits, init, clusters()[0], labels, **given)


@pytest.mark.slow
def test_a_distortion_by_nothing_changes_nothing() -> None:
    image = jax.random.uniform(jax.random.key(0), (7, 9, 2), minval=-1.0)
    still = jax.jit(functools.partial(distorted, turn=0.0, scale=0.0, shift=0.0))(jax.random.key(1), image)
    np.testing.assert_allclose(still, image, atol=1e-6)


def test_a_distorted_image_is_the_image_resampled_at_the_moved_places() -> None:
    rows, columns = np.meshgrid(np.arange(28.0), np.arange(28.0), indexing="ij")
    plane = (0.01 * rows + 0.02 * columns - 0.5).astype(np.float32)[..., None]  # linear, so that interpolation is exact
    key = jax.random.key(5)
    numbers = np.asarray(jax.random.uniform(own_key(key, Domain.DISTORTED), (6,), jnp.float32, -1.0, 1.0), np.float64)
    with jax.debug_key_reuse(False):  # the oracle draws the same numbers
        moved = np.asarray(jax.jit(distorted)(key, jnp.asarray(plane)))[8:20, 8:20, 0]
    slant = 0.2 * (-numbers[1] + 0.5 * numbers[4])
    from_centre = rows - 13.5, columns - 13.5
    row = (1 + 0.15 * numbers[3]) * from_centre[0] + slant * from_centre[1] + 2 * numbers[5]
    column = (1 + 0.15 * numbers[0]) * from_centre[1] + 0.2 * numbers[1] * row + 2 * numbers[2]
    expected = 0.01 * (row + 13.5) + 0.02 * (column + 13.5) - 0.5
    np.testing.assert_allclose(moved, expected[8:20, 8:20], atol=1e-4)


def test_a_hole_is_a_black_square() -> None:
    holes = jax.jit(jax.vmap(lambda key: erased(key, jnp.ones((28, 28, 1)), 10)))(
        jax.random.split(jax.random.key(0), 50)
    )
    black = (np.asarray(holes) == -1).sum(axis=(1, 2, 3))
    assert black.max() == 100
    assert black.min() >= 25
    assert set(np.unique(holes)) == {-1.0, 1.0}
