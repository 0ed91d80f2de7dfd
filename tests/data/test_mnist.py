"""The embedded MNIST."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxdp
from jaxdp import data

EMBEDDED = Path(data.__file__).parent / "mnist"


def test_mnist_is_embedded_whole() -> None:
    mnist = data.load()
    assert mnist.train_images.shape == (60_000, 28, 28, 1)
    assert mnist.test_images.shape == (10_000, 28, 28, 1)
    assert mnist.train_images.dtype == mnist.test_images.dtype == np.uint8
    np.testing.assert_array_equal(np.bincount(mnist.train_labels)[[0, 1, 9]], [5923, 6742, 5949])
    assert (EMBEDDED / "ATTRIBUTION.md").read_text().count("CC BY-SA 3.0") == 1


@pytest.mark.parametrize("damage", ["cut short", "not gzip", "other content", "missing"])
def test_a_damaged_file_is_named_with_what_was_expected(damage: str, tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "mnist")
    victim = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    if damage == "cut short":
        victim.write_bytes(victim.read_bytes()[:-100])
    elif damage == "not gzip":
        victim.write_bytes(b"hello")
    elif damage == "other content":
        victim.write_bytes(gzip.compress(b"hello"))
    else:
        victim.unlink()
    with pytest.raises(jaxdp.UsageError, match="train-labels-idx1-ubyte.gz is (damaged|missing)"):
        data.load_mnist(tmp_path / "mnist")


def test_examples_held_back_are_the_new_test_set_and_no_longer_trained_on() -> None:
    mnist = data.load()
    held_back = data.hold_back(mnist, 10_000)
    assert len(held_back.train_labels) == 50_000
    assert len(held_back.test_labels) == 10_000
    both = np.concatenate([held_back.train_images, held_back.test_images]).sum(axis=(1, 2, 3))
    np.testing.assert_array_equal(np.sort(both), np.sort(mnist.train_images.sum(axis=(1, 2, 3))))
    assert data.hold_back(mnist, 0) is mnist
    with pytest.raises(jaxdp.UsageError, match="hold back fewer"):
        data.hold_back(mnist, 60_000)


def test_the_fingerprint_tells_contents_shapes_and_dtypes_apart() -> None:
    a = np.arange(6, dtype=np.uint8)
    prints = {data.fingerprint(x, secret=b"s") for x in (a, a.reshape(2, 3), a.astype(np.int32), a[::-1])}
    assert len(prints) == 4
    assert data.fingerprint(a, secret=b"s") == data.fingerprint(a.copy(), secret=b"s")


def test_without_its_secret_a_fingerprint_tells_nothing() -> None:
    a = np.arange(6, dtype=np.uint8)
    assert data.fingerprint(a, secret=b"s") != data.fingerprint(a, secret=b"t")
