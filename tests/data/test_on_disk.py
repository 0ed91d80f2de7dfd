"""Data sets that stay on disk are those that they are in memory, and damage to them is told by the record."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import jaxdp
from jaxdp import data
from jaxdp.data._on_disk import columns, on_disk, read_all
from jaxdp.reading import Source

TRAIN = Path("mnist", "3.0.1", "mnist-train.array_record-00000-of-00001")


def stored(folder: Path) -> data.OnDisk:
    prepared = data.prepared("mnist", folder)
    assert prepared is not None
    return on_disk(prepared)


@pytest.fixture
def damaged(tfds_dir: Path, tmp_path: Path) -> Path:
    """The data set with some bytes in the middle of its training split changed."""
    shutil.copytree(tfds_dir, tmp_path / "tfds")
    path = tmp_path / "tfds" / TRAIN
    content = bytearray(path.read_bytes())
    content[100_000:100_400] = bytes(byte ^ 0xFF for byte in content[100_000:100_400])
    path.write_bytes(content)
    return tmp_path / "tfds"


@pytest.mark.parametrize("holdout", [0, 100])
def test_records_on_disk_are_those_in_memory(holdout: int, tfds_dir: Path) -> None:
    memory = data.hold_back(data.load_labelled("mnist", tfds_dir), holdout)
    disk = data.hold_back(stored(tfds_dir), holdout)
    assert isinstance(disk.test, Source)
    for ours, theirs in ((disk.train, memory.train), (disk.test, memory.test)):
        for a, b in zip(read_all(ours), theirs, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    for name in ("name", "task", "public_test", "described"):
        assert getattr(disk, name) == getattr(memory, name)
    inputs = data.Column(disk.test, 0)
    assert (inputs.shape, inputs.dtype, len(inputs)) == (memory.test[0].shape, np.uint8, len(memory.test[0]))
    np.testing.assert_array_equal(inputs[30:90], memory.test[0][30:90])
    _, labels = columns(disk.with_test_in_memory().test)
    np.testing.assert_array_equal(labels, memory.test[1])


@pytest.mark.parametrize("holdout", [0, 100])
def test_the_fingerprint_is_that_of_the_arrays_and_records_are_read_once_for_all_secrets(
    holdout: int, tfds_dir: Path
) -> None:
    shown = []

    def progress(rows: range, said: str) -> Iterator[int]:
        shown.append(said)
        yield from rows
        shown.append("all of them")

    memory = data.hold_back(data.load_labelled("mnist", tfds_dir), holdout)
    fingerprints = data.Fingerprints(data.hold_back(stored(tfds_dir), holdout).train, progress)
    fingerprints.expect(b"one")
    fingerprints.expect(b"two")
    for secret in (b"three", b"two", b"one", b"three"):
        assert fingerprints(secret) == data.fingerprint(*memory.train, secret=secret)
    assert shown == ["reading all records once, to know them again", "all of them"]
    assert fingerprints(b"four") == data.Fingerprints(memory.train)(b"four")


def test_a_record_that_is_damaged_is_named_however_often_it_is_read(damaged: Path) -> None:
    disk = stored(damaged)
    for _ in range(2):
        with pytest.raises(jaxdp.UsageError, match=r"records\[264\] can't be read.*record 264 of split train"):
            read_all(disk.train)
    order = np.random.default_rng(0).permutation(512)
    place = int(np.flatnonzero(order[10:] == 264)[0])
    with pytest.raises(jaxdp.UsageError, match=rf"records\[{place}\] can't be read.*record 264 of split train"):
        data.Fingerprints(data.hold_back(disk, 10).train)(b"a secret")
    others = data.hold_back(disk, 10).test
    assert isinstance(others, Source)
    read_all(others)


def test_a_file_cut_short_is_refused_at_the_first_record(tfds_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tfds_dir, tmp_path / "tfds")
    path = tmp_path / "tfds" / TRAIN
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(jaxdp.UsageError, match=r"records\[0\] can't be read.*of split train"):
        stored(tmp_path / "tfds").train.read(np.arange(3))


def test_what_it_takes_in_memory_is_told_before_it_is_read(tfds_dir: Path) -> None:
    prepared, arrays = data.prepared("mnist", tfds_dir), data.load("mnist", tfds_dir)
    assert prepared is not None
    sizes = [images.nbytes + labels.nbytes for images, labels in ((arrays[1], arrays[2]), (arrays[3], arrays[4]))]
    assert list(prepared.sizes) == sizes
    assert data.prepared("mnist") is None
