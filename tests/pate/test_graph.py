"""The graph of public examples: coordinates that tell clusters apart, of private examples one by one, and labels that spread."""

from typing import Any

import numpy as np
import pytest

import jaxdp
from jaxdp.pate import graph_coordinates, spread_labels


def clusters(count: int, seed: int, *, apart: float = 4) -> tuple[np.ndarray, np.ndarray]:
    """Points about three directions of twelve, and of which they are."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    return (apart * np.eye(12)[4 * labels] + rng.normal(size=(count, 12))).astype(np.float32), labels


def test_coordinates_are_the_walks_eigenvectors_in_plain_numpy() -> None:
    public, _ = clusters(90, 0, apart=2)
    found, _ = graph_coordinates(public, public[:1], neighbours=7, dimensions=4)
    unit = public / np.linalg.norm(public, axis=1, keepdims=True)
    squares = 2 - 2 * unit.astype(np.float64) @ unit.T
    np.fill_diagonal(squares, np.inf)
    reach = np.sqrt(np.sort(squares, axis=1)[:, 6])
    near = squares <= np.sort(squares, axis=1)[:, 6:7]
    weights = np.where(near, np.exp(-squares / np.outer(reach, reach)), 0)
    weights = (weights + weights.T) / 2
    walk = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found[:, 0], found[0, 0], rtol=1e-4)  # the stationary state
    values = np.sort(np.linalg.eigvals(walk).real)[::-1][:4]
    np.testing.assert_allclose(walk @ found, found * values, atol=1e-4)
    share = weights.sum(axis=1) / weights.sum()
    np.testing.assert_allclose(share @ np.square(found), values**4, rtol=1e-3)


def test_a_private_examples_coordinates_depend_on_it_and_on_the_public_ones_alone() -> None:
    (public, _), (private, labels) = clusters(120, 1), clusters(40, 2)
    _, found = graph_coordinates(public, private, dimensions=5)
    other = private.copy()
    other[3] = -7
    again, changed = graph_coordinates(public, other, dimensions=5)
    assert (np.delete(changed, 3, axis=0) == np.delete(found, 3, axis=0)).all()
    assert not (changed[3] == found[3]).all()
    centres = [again[clusters(120, 1)[1] == each].mean(axis=0) for each in range(3)]
    nearest = np.argmin([np.linalg.norm(found - centre, axis=1) for centre in centres], axis=0)
    assert np.mean(nearest == labels) > 0.9


def test_a_public_example_among_the_private_ones_lies_near_itself() -> None:
    public, _ = clusters(200, 3)
    coordinates, same = graph_coordinates(public, public, dimensions=3)
    assert np.corrcoef(coordinates[:, 1], same[:, 1])[0, 1] > 0.95


def test_examples_that_are_the_same_and_those_without_features_have_coordinates() -> None:
    public = np.concatenate([clusters(60, 4)[0], np.ones((20, 12), np.float32), np.zeros((15, 12), np.float32)])
    for coordinates in graph_coordinates(public, public[-40:], neighbours=5, dimensions=6):
        assert np.isfinite(coordinates).all()


@pytest.mark.slow
def test_examples_far_from_copies_of_each_other_have_coordinates() -> None:
    copies, others = np.repeat(np.eye(8)[:3], 40, axis=0), np.abs(np.random.default_rng(0).normal(size=(20, 8)))
    for public in (copies, np.concatenate([copies, np.eye(8)[7:]])):
        for coordinates in graph_coordinates(public, others, dimensions=5):
            assert np.isfinite(coordinates).all()


def test_labels_spread_within_clusters_and_one_that_others_contradict_is_replaced() -> None:
    public, truth = clusters(300, 5)
    coordinates, _ = graph_coordinates(public, public[:1], dimensions=4)
    labels = np.full(300, -1)
    labels[:40] = truth[:40]
    labels[:4] = (truth[:4] + 1) % 3
    spread = spread_labels(coordinates, labels)
    given = spread >= 0
    assert given.mean() > 0.5
    assert np.mean(spread[given] == truth[given]) > 0.95
    majority = spread_labels(coordinates, labels, confidence=0.4)
    assert np.mean(majority[:40] == truth[:40]) > np.mean(labels[:40] == truth[:40])
    assert set(spread_labels(coordinates, labels, confidence=0.0)) <= {0, 1, 2}
    assert (spread_labels(coordinates, labels, confidence=1.1) == labels).all()


@pytest.mark.parametrize(
    ("public", "private", "options", "said"),
    [
        (np.ones((5, 3)), np.ones((2, 3)), {}, "5 public examples are too few for 10 neighbours and 20 coordinates"),
        (np.ones((50, 3)), np.ones((2, 4)), {}, r"public has shape \(50, 3\) and private \(2, 4\)"),
        (np.ones((50, 3)), np.ones((2, 3)), {"neighbours": 0}, "neighbours=0"),
        (np.ones((50, 3)), np.ones((2, 3)), {"dimensions": 0}, "dimensions=0"),
    ],
)
def test_what_makes_no_graph_is_refused(public: Any, private: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        graph_coordinates(public, private, **options)


def test_nothing_spreads_from_no_label() -> None:
    with pytest.raises(jaxdp.UsageError, match="labels hold no answer"):
        spread_labels(np.ones((4, 2)), np.full(4, -1))


def test_labels_of_one_class_alone_spread_to_nobody() -> None:
    labels = np.full(100, -1)
    labels[7] = 3
    spread = spread_labels(np.random.default_rng(0).normal(size=(100, 4)), labels)
    assert (spread == labels).all()
