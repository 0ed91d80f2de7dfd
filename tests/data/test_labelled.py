"""Data sets as training sees them: what labels mean, what is held back, what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import jaxdp
from jaxdp import data

INPUTS = np.arange(12, dtype=np.float32).reshape(6, 2)
CLASSES = np.array([0, 1, 2, 0, 1, 2])


def labelled(**changes: Any) -> data.Labelled:
    given = {"name": "six", "train": (INPUTS, CLASSES), "test": (INPUTS, CLASSES), "task": data.Classes(3)}
    return data.Labelled(**{**given, **changes})


def test_whole_numbers_that_jax_would_wrap_around_are_refused() -> None:
    large = np.arange(6)[:, None] + 2**33
    for changes in ({"train": (large, CLASSES)}, {"train": (INPUTS, CLASSES + 2**40)}):
        with pytest.raises(jaxdp.UsageError, match="and JAX takes int64 as int32: give smaller numbers"):
            labelled(**changes)


def test_a_description_that_is_not_json_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="described can't be written as JSON"):
        labelled(described={"mean": np.float32(1)})


def test_images_become_inputs_with_one_class_each(tfds_dir: Any) -> None:
    digits = data.load("mnist", tfds_dir)
    seen = data.load_labelled("mnist", tfds_dir)
    np.testing.assert_array_equal(seen.train[0], digits.train_images)
    np.testing.assert_array_equal(seen.test[1], digits.test_labels)
    assert seen.task == data.Classes(10)
    assert seen.public_test
    assert seen.described == {"num_classes": 10, "image_shape": (28, 28, 1)}


def test_what_is_held_back_is_the_same_of_images_and_of_what_they_become(tfds_dir: Any) -> None:
    digits = data.load("mnist", tfds_dir)
    ours, theirs = data.hold_back(digits, 100), data.hold_back(digits.labelled(), 100)
    np.testing.assert_array_equal(ours.train_images, theirs.train[0])
    np.testing.assert_array_equal(ours.test_labels, theirs.test[1])
    assert len(theirs.test[0]) == 100
    assert not theirs.public_test
    seen = labelled()
    assert data.hold_back(seen, 0) is seen
    with pytest.raises(jaxdp.UsageError, match="leaves none of the 6 training examples"):
        data.hold_back(seen, 6)


def test_a_classes_loss_is_cross_entropy_and_its_accuracy_the_share_of_hits() -> None:
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    task = data.Classes(3)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(p[np.arange(6), CLASSES])
    losses, right = jax.vmap(task.loss)(jnp.asarray(logits), jnp.asarray(CLASSES))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    found = np.asarray(jax.vmap(task.probabilities)(jnp.asarray(logits)))
    np.testing.assert_allclose(found, p, rtol=1e-5)
    loss, accuracy = task.evaluate(found, CLASSES)
    assert loss == pytest.approx(expected.mean(), rel=1e-5)
    assert accuracy == pytest.approx(np.mean(logits.argmax(axis=1) == CLASSES)) == pytest.approx(float(right.mean()))


def test_a_targets_loss_is_added_up_and_evaluated_per_target() -> None:
    logits = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    labels = np.random.default_rng(2).integers(0, 2, (6, 4)).astype(np.uint8)
    task = data.Targets(4)
    expected = -scipy.stats.bernoulli.logpmf(labels, scipy.special.expit(logits.astype(np.float64)))
    losses, right = jax.vmap(task.loss)(jnp.asarray(logits), jnp.asarray(labels))
    np.testing.assert_allclose(losses, expected.sum(axis=1), rtol=1e-5)
    found = np.asarray(jax.vmap(task.probabilities)(jnp.asarray(logits)))
    loss, accuracy = task.evaluate(found, labels)
    assert loss == pytest.approx(expected.mean(), rel=1e-5)
    assert accuracy == pytest.approx(np.mean((logits > 0) == (labels > 0))) == pytest.approx(float(right.mean()))
    assert task.outputs == task.targets == 4


def test_a_numbers_loss_is_the_squared_error_of_what_is_within_bounds() -> None:
    """Two targets from 10 to 50: their middle is 30, and half their distance 20."""
    logits = np.array([[0.0, 0.5], [-2.0, 1.0], [1.5, -0.25]], np.float32)
    labels = np.array([[30.0, 50.0], [5.0, 60.0], [50.0, 20.0]], np.float32)
    task = data.Numbers(2, 10.0, 50.0)
    losses, errors = jax.vmap(task.loss)(jnp.asarray(logits), jnp.asarray(labels))
    np.testing.assert_allclose(
        losses, [0.5**2, 1, 0.5**2 + 0.25**2], rtol=1e-6
    )  # -2 is 1 too low for what is clamped to -1
    np.testing.assert_allclose(errors, [5, 0, 2.5], rtol=1e-6)  # and no error, once it is clamped itself
    found = np.asarray(jax.vmap(task.probabilities)(jnp.asarray(logits)))
    np.testing.assert_allclose(found, [[30, 40], [10, 50], [50, 25]], rtol=1e-6)
    loss, error = task.evaluate(found, labels)
    assert error == pytest.approx((10 + 5 + 10 + 5) / 6)
    assert task.figures(loss, error)["rmse"] == pytest.approx(np.sqrt((10**2 + 5**2 + 10**2 + 5**2) / 6))
    assert task.outputs == task.targets == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train": (INPUTS, CLASSES[:5])}, "train has 6 inputs and 5 labels"),
        ({"test": (INPUTS[:0], CLASSES[:0])}, "test has 0 inputs and 0 labels"),
        ({"train": INPUTS}, "train is ndarray: give"),
        ({"train": (INPUTS.tolist(), CLASSES)}, "train holds a list"),
        ({"train": (np.array(list("abcdef")), CLASSES)}, "train holds a ndarray that is no array of numbers"),
        ({"test": (INPUTS.astype(np.float64), CLASSES)}, "inputs are float32 [2] a record in train and float64 [2]"),
        ({"test": (INPUTS[:, :1], CLASSES)}, "float32 [1] in test"),
        ({"task": data.Classes(2)}, "labels hold 2, and of 2 classes one is a number from 0 to 1"),
        ({"task": data.Targets(3)}, "give 0 or 1, [n, 3]"),
        ({"task": data.Numbers(3, 0.0, 1.0)}, "give finite numbers, [n, 3]"),
        ({"task": "classes"}, "give a task such as jaxdp.data.Classes(10)"),
        ({"name": 3}, "name=3"),
    ],
)
def test_records_that_nothing_can_be_learned_of_are_refused(
    changes: dict[str, Any], said: str, unchecked: None
) -> None:
    with pytest.raises(jaxdp.UsageError) as error:
        labelled(**changes)
    assert said in str(error.value)


def test_labels_of_a_test_part_count_where_it_is_evaluated_on() -> None:
    unlabelled = labelled(test=(INPUTS, np.full_like(CLASSES, -1)))
    data.hold_back(unlabelled, 2).check_test()
    with pytest.raises(jaxdp.UsageError, match=r"test: labels hold -1.*--holdout"):
        unlabelled.check_test()


def test_a_function_that_gives_no_data_set_is_named(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    monkeypatch.setitem(data.DATASETS, "mine", lambda: (INPUTS, CLASSES))
    with pytest.raises(jaxdp.UsageError, match=r"DATASETS\['mine'\].*return a jaxdp\.data\.Dataset"):
        data.load_labelled("mine")


@pytest.mark.parametrize("make", [lambda: data.Classes(1), lambda: data.Targets(0), lambda: data.Numbers(0, 0.0, 1.0)])
def test_a_task_without_anything_to_tell_apart_is_refused(make: Any) -> None:
    with pytest.raises(jaxdp.UsageError, match="count="):
        make()


def test_decoding_shows_how_far_it_is(tfds_dir: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = []

    def progress(rows: range, said: str) -> Any:
        for row in rows:
            told.append((said, row))
            yield row

    data.load_tfds("mnist", tfds_dir, progress=progress)
    assert told[0] == ("decoding mnist train", 0)
    assert told[-1] == ("decoding mnist test", 127)
    assert len(told) == 512 + 128
