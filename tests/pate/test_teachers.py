"""Teachers: whose records they see, and that training them together gives what training each alone gives."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from of_several import together
from small_teachers import OPTIMIZER, init, logits, loss, records, trained

import jaxdp
from jaxdp import pate
from jaxdp.noise._keys import Domain, own_key
from jaxdp.pate import _shards, _teachers


@settings(max_examples=10, deadline=None)
@given(size=st.sampled_from([7, 60, 200]), teachers=st.sampled_from([2, 7, 59, 60]), seed=st.integers(0, 99))
def test_every_record_is_in_exactly_one_shard_and_shards_are_uneven_by_one_at_most(
    size: int, teachers: int, seed: int
) -> None:
    if teachers > size:
        return
    shards = _shards.shards(size, teachers, jax.random.key(seed))
    assert sorted(shards[shards >= 0].tolist()) == list(range(size))
    sizes = (shards >= 0).sum(axis=1)
    assert shards.shape[0] == teachers
    assert sizes.max() - sizes.min() <= 1
    assert (shards[:, : sizes.min()] >= 0).all()


def trained_by_a_plain_loop(key: Any, own: np.ndarray) -> Any:
    """One teacher by the book: no scan, no vmap over teachers, one step after another."""
    of_init, of_order, of_loss = jax.random.split(key, 3)
    inputs, labels = records()
    order = np.concatenate([jax.random.permutation(each, len(own)) for each in jax.random.split(of_order, 2)])
    params = jax.jit(init)(of_init)
    state, update = OPTIMIZER.init(params), jax.jit(OPTIMIZER.update)

    @jax.jit
    @jax.grad
    def gradient(params: Any, images: Any, labels: Any, keys: Any) -> Any:
        losses = [loss(params, (image, label), key) for image, label, key in zip(images, labels, keys, strict=True)]
        return sum(losses) / 4

    for step in range(len(order) // 4):
        rows = own[order[4 * step : 4 * step + 4]]
        keys = jax.random.split(jax.random.fold_in(of_loss, step), 4)
        grads = gradient(params, inputs[rows], labels[rows], keys)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.slow
def test_each_teacher_is_what_a_plain_loop_over_its_shard_makes() -> None:
    teachers = trained(at_once=1)
    of_shards, of_teachers = jax.random.split(own_key(jax.random.key(1), Domain.TEACHERS))
    np.testing.assert_array_equal(teachers.shards, _shards.shards(23, 4, of_shards))
    short = teachers.shards[3]
    assert short[-1] == -1, "23 records make one shard of four short"
    own = np.where(short < 0, short[0], short)
    expected = trained_by_a_plain_loop(jax.random.split(of_teachers, 4)[3], own)
    ours = jax.tree.map(lambda leaf: leaf[3], teachers.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [3, 4])
def test_how_many_train_at_once_changes_nothing_but_speed(at_once: int) -> None:
    together, alone = trained(at_once=at_once), trained(at_once=1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), together.params, alone.params)


@pytest.mark.slow_but("a callback")
@pytest.mark.parametrize("kind", ["a callback", "a record's key"])
def test_teachers_that_could_see_each_other_are_refused_side_by_side(kind: str) -> None:
    def seen(image: Any, label: Any) -> Any:
        if kind == "a callback":
            return jax.pure_callback(np.asarray, image, image, vmap_method="expand_dims")
        return image + jax.random.normal(jax.random.key(label, impl="rbg"), image.shape)

    def of_one(params: Any, example: Any, rng: Any) -> Any:
        image, label = example
        return loss(params, (seen(jax.lax.stop_gradient(image), label), label), rng)

    given = {"num_teachers": 2, "optimizer": OPTIMIZER, "epochs": 1, "batch_size": 4, "key": jax.random.key(1)}
    with pytest.raises(jaxdp.UsageError, match="the loss (calls back|draws by a key)"):
        jaxdp.pate.train_teachers(of_one, init, records(), **given, at_once=2)


@pytest.mark.slow
def test_a_record_teaches_one_teacher_and_no_other() -> None:
    inputs, labels = records()
    changed = inputs.copy()
    changed[7] += 1
    before, after = trained(at_once=1), trained((changed, labels), at_once=1)
    differs = np.any(
        [
            np.any(a != b, axis=tuple(range(1, a.ndim)))
            for a, b in zip(*map(jax.tree.leaves, (before.params, after.params)), strict=True)
        ],
        axis=0,
    )
    np.testing.assert_array_equal(differs, np.any(before.shards == 7, axis=1))


@pytest.mark.slow
def test_predictions_and_accuracies_are_those_of_each_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_teachers, "_ROWS", 10)  # so that the last part is a short one
    inputs, labels = records()
    teachers, of_one = trained(), jax.jit(logits)
    models = [jax.tree.map(lambda leaf, at=at: np.asarray(leaf)[at], teachers.params) for at in range(4)]
    one_by_one = [[int(np.argmax(of_one(model, image))) for image in inputs] for model in models]
    np.testing.assert_array_equal(teachers.predict(logits, inputs), one_by_one)
    accuracy = teachers.accuracy(logits, inputs, labels)
    np.testing.assert_allclose(accuracy, np.mean(np.array(one_by_one) == labels, axis=1))


def test_teachers_whose_logits_are_nan_are_told_of_and_refused_where_all_agree_on_nothing() -> None:
    says = lambda params, x: x * params
    some = pate.Teachers(np.array([1.0, np.nan, 2.0], np.float32), np.zeros((3, 1), np.int32))
    with pytest.warns(UserWarning, match="of 3 teachers, 1 have logits of NaN for some inputs, and vote for class 0"):
        found = some.predict(says, np.array([[1.0, 2.0], [3.0, 0.0]], np.float32))
    assert found.tolist() == [[1, 0], [0, 0], [1, 0]]
    whole = pate.Teachers(np.ones(3, np.float32), some.shards)
    with pytest.raises(jaxdp.UsageError, match="every teacher are NaN for input 1: give inputs without NaN, or lower"):
        whole.predict(says, np.array([[1.0, 2.0], [np.nan, 1.0]], np.float32))
    apart = np.where(np.eye(3, dtype=bool), _teachers.DIVERGED, 1).astype(np.int32)
    with pytest.warns(UserWarning, match="of 3 teachers, 3 have"):
        assert _teachers.settled(apart).tolist() == (1 - np.eye(3, dtype=int)).tolist()


@pytest.mark.slow
def test_votes_and_public_inputs_may_be_on_a_mesh_of_explicit_axes() -> None:
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    on_mesh = lambda x, *spec: jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))
    predictions = np.array([[0, 2, 1], [0, 1, 1]], np.int32)
    for spec in (("a",), (None, "a")):
        counts = pate.vote_counts(on_mesh(predictions, *spec), 3)
        np.testing.assert_array_equal(counts, pate.vote_counts(predictions, 3))
    inputs, labels = records(6)
    learn = lambda inputs: pate.train_student(
        logits, init, inputs, labels, optimizer=OPTIMIZER, steps=1, key=jax.random.key(0), method="supervised"
    )
    jax.tree.map(np.testing.assert_array_equal, learn(on_mesh(inputs, "a")), learn(inputs))


WITHIN_A_MESH = """
import jax
from small_teachers import trained
for at_once in (1, 4):
    with jax.set_mesh(jax.make_mesh((2,), ("a",))):
        try:
            print(len(trained(at_once=at_once).shards))
        except Exception as error:
            print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_within_another_mesh_teachers_are_trained_one_at_a_time_or_refused() -> None:
    (end,) = together([["-c", WITHIN_A_MESH]], devices=2)
    alone, beside = end.out.splitlines()
    assert alone == "4", end.err
    assert beside.startswith("UsageError jax.set_mesh is set"), end.out


@pytest.mark.slow
def test_progress_is_told_as_teachers_finish() -> None:
    heard: list[int] = []
    trained(at_once=3, on_progress=heard.append)
    assert heard == [3, 4]


def test_a_class_beyond_the_outputs_is_refused() -> None:
    inputs, labels = records()

    def of_logits(params: Any, example: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, example[0]), example[1])

    how = {"num_teachers": 2, "optimizer": OPTIMIZER, "epochs": 1, "batch_size": 4, "key": jax.random.key(0)}
    with pytest.raises(jaxdp.UsageError, match="loss_fn is NaN of a record whose label is 3: give labels from 0"):
        jaxdp.pate.train_teachers(of_logits, init, (inputs, labels + 1), **how)


def test_a_class_that_a_shard_misses_is_warned_of_once() -> None:
    rows = np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32)
    labels = np.array([0, 0, 0, 1, 0, 0, 0, 0])
    with pytest.warns(UserWarning, match=r"3 of 4 teachers .* \(teacher 0 none of class 1\)") as caught:
        _shards.warn_of_missing_classes(rows, labels)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_teachers": 1}, "one teacher's vote can't hide"),
        ({"num_teachers": 24}, "num_teachers=24 exceeds the 23 records"),
        ({"batch_size": 7}, "batch_size=7 exceeds the 6 records of a teacher"),
        ({"epochs": 0}, "epochs=0 must be above 0"),
        ({"at_once": 0}, "at_once=0 must be above 0"),
        ({"data": [1, 2]}, "give the pair"),
        ({"data": (np.zeros((4, 2)), np.zeros(3, np.int32))}, r"leading axes \[3, 4\] don't agree"),
    ],
)
def test_what_makes_no_ensemble_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        trained(**changes)


ON_FOUR_DEVICES = """
import jax, numpy as np
from small_teachers import trained
assert len(jax.devices()) == 4
together, alone = trained(), trained(at_once=1)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), together.params, alone.params)
print("the same")
"""


@pytest.mark.slow
def test_teachers_divided_over_four_devices_are_the_same() -> None:
    (end,) = together([["-c", ON_FOUR_DEVICES]], devices=4)
    assert end.out == "the same\n", end.err
