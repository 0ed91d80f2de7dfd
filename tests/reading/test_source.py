"""Records are read at their indices, whatever they are kept in."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp import data
from jaxdp.reading import Source

N = 40
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 4, 3), np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, N)


class Together:
    """A data set that is read several records at a time."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(indices)
        return [self.records[index] for index in indices]


def memmap(path: Path, array: np.ndarray) -> np.ndarray:
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def files(folder: Path) -> list[Path]:
    paths = [folder / f"{index}.npz" for index in range(N)]
    for path, image, label in zip(paths, IMAGES, LABELS, strict=True):
        np.savez(path, image=image, label=label)
    return paths


def decoded(path: Path) -> tuple[np.ndarray, int]:
    with np.load(path) as stored:
        return stored["image"], int(stored["label"])


PAIRS = list(zip(IMAGES, LABELS.tolist(), strict=True))
KINDS: dict[str, Callable[[Path], Source]] = {
    "memory-mapped arrays": lambda at: Source((memmap(at / "x.npy", IMAGES), memmap(at / "y.npy", LABELS))),
    "memory-mapped arrays of another byte order": lambda at: Source(
        (memmap(at / "x.npy", IMAGES), memmap(at / "y.npy", LABELS.astype(">i4")))
    ),
    "arrays, decoded": lambda at: Source(
        {"x": IMAGES.astype(float), "y": LABELS}, lambda record: (record["x"].astype(np.uint8), record["y"])
    ),
    "arrays of JAX's": lambda at: Source((jnp.asarray(IMAGES), jnp.asarray(LABELS))),
    "a file each": lambda at: Source(files(at), decoded),
    "a tuple of files": lambda at: Source(tuple(files(at)), decoded),
    "an array of names of files": lambda at: Source(np.array([str(path) for path in files(at)]), decoded),
    "a list of pairs": lambda at: Source(PAIRS),
    "several together": lambda at: Source(Together(PAIRS)),
    "a data set of Grain's": lambda at: Source(grain.MapDataset.range(N).map(lambda index: PAIRS[index])),
}


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    return KINDS[request.param](tmp_path)


def test_records_come_in_the_order_asked_for_with_their_own_values(source: Source) -> None:
    indices = np.array([7, 0, 39, 7, 20])
    images, labels = source.read(indices)
    np.testing.assert_array_equal(images, IMAGES[indices])
    np.testing.assert_array_equal(labels, LABELS[indices])
    assert len(source) == N


def test_records_are_as_jax_takes_them(source: Source) -> None:
    image, label = source.like
    assert (image.shape, image.dtype, label.shape, label.dtype) == ((4, 3), np.uint8, (), np.int32)
    rows = source.read(np.arange(3))
    assert jax.tree.map(lambda row: (row.shape[1:], row.dtype), rows) == ((image.shape, image.dtype), ((), label.dtype))


def test_no_indices_give_no_rows(source: Source) -> None:
    images, labels = source.read(np.zeros(0, int))
    assert images.shape == (0, 4, 3)
    assert labels.shape == (0,)


def test_rows_behind_those_asked_for_are_zeros(source: Source) -> None:
    images, labels = source.read_padded(np.array([3, 4]), 5)
    np.testing.assert_array_equal(images[:2], IMAGES[3:5])
    np.testing.assert_array_equal(labels, [*LABELS[3:5], 0, 0, 0])
    assert not images[2:].any()


def test_a_tfds_data_source_gives_the_records_that_were_prepared(tfds_dir: Path) -> None:
    import tensorflow_datasets as tfds

    prepared = tfds.builder_from_directory(tfds_dir / "mnist" / "3.0.1").as_data_source("train")
    source = Source(prepared, lambda record: (record["image"], record["label"]))
    arrays = data.load("mnist", tfds_dir)
    indices = np.array([500, 3, 77, 3])
    images, labels = source.read(indices)
    assert len(source) == 512
    np.testing.assert_array_equal(images, arrays.train_images[indices])
    np.testing.assert_array_equal(labels, arrays.train_labels[indices])


def test_one_array_gives_rows_of_one_array() -> None:
    np.testing.assert_array_equal(Source(IMAGES).read(np.array([5, 1])), IMAGES[[5, 1]])


def test_records_are_read_together_where_their_data_set_can() -> None:
    records = Together(PAIRS)
    Source(records).read(np.array([5, 1, 6]))
    assert records.asked == [[0], [5, 1, 6]]


def test_with_64_bits_records_keep_them() -> None:
    with jax.enable_x64(True):
        source = Source((np.ones((2, 3)), np.array([2**40, 1])))
        assert [leaf.dtype for leaf in source.like] == [np.float64, np.int64]
        assert source.read(np.array([0]))[1][0] == 2**40


@pytest.mark.parametrize("values", [np.array([1, 5, -3]), np.array([1, 5, 7], np.uint64), [1, 5, 7]])
def test_whole_numbers_that_fit_are_narrowed_without_a_change(values: Any) -> None:
    read = Source(values).read(np.arange(3))
    assert read.dtype.itemsize == 4
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize(
    "values", [np.array([[1, 5], [-(2**31) - 1, 2], [2**31, 1]]), np.array([1, 2**32, 7], np.uint64)]
)
@pytest.mark.parametrize("kept", [lambda array: array, lambda array: list(array)])
def test_a_whole_number_that_32_bits_do_not_hold_is_an_error(values: np.ndarray, kept: Callable) -> None:
    with pytest.raises(jaxdp.UsageError, match=r"records\[1\] holds (-2147483649|4294967296).*jax_enable_x64"):
        Source(kept(values)).read(np.array([0, 1, 2]))


def test_a_float_beyond_float32_is_infinite_as_in_jax() -> None:
    np.testing.assert_array_equal(Source(np.array([1e300, 1.0])).read(np.arange(2)), [np.inf, 1.0])


@pytest.mark.parametrize(
    ("values", "dtype"), [([True, False], np.bool_), ([1j, 2.0 + 0j], np.complex64), ([1.5, 2.5], np.float32)]
)
def test_bools_complex_numbers_and_floats_are_numbers(values: list[Any], dtype: Any) -> None:
    read = Source(values).read(np.array([1, 0]))
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, values[::-1])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ((np.zeros((4, 2), np.uint8), 1), r"records\[2\]\[0\] is of uint8 and shape \(4, 2\)"),
        ((np.zeros((4, 3), np.float32), 1), r"records\[2\]\[0\] is of float32"),
        ((IMAGES[0], 0.5), r"records\[2\]\[1\] is of float64 and shape \(\), and in records\[0\] of int32"),
        ((IMAGES[0], "cat"), r"records\[2\]\[1\] is str of .* and no array of numbers"),
        ((IMAGES[0], 1, 1), r"records\[2\] is a pytree of another structure"),
        ((IMAGES[0], None), r"records\[2\] is a pytree of another structure"),
    ],
)
@pytest.mark.parametrize("kept", [list, Together])
def test_a_record_of_another_kind_than_the_first_is_named(other: Any, said: str, kept: Callable) -> None:
    source = Source(kept([*PAIRS[:2], other, *PAIRS[3:]]))
    np.testing.assert_array_equal(source.read(np.array([1, 3]))[0], IMAGES[[1, 3]])
    with pytest.raises(jaxdp.UsageError, match=said):
        source.read(np.array([1, 2, 3]))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (3, "records=3 is a int.*__len__ and __getitem__"),
        (iter([1, 2]), "__len__ and __getitem__"),
        ({1, 2}, "__len__ and __getitem__"),
        ("images.npy", "records='images.npy' is a str"),
        ([], "records is empty"),
        ({}, "records is empty"),
        (np.zeros((0, 3)), "records is empty"),
        (np.float32(1), "records"),
        (np.zeros(()), "an array without rows"),
        ((np.zeros(3), np.zeros(4)), r"several lengths \(3, 4\)"),
        ((np.zeros(3), [1, 2, 3]), r"records\[1\]\[0\] is a int and no array"),
        ({"x": np.zeros(3), "y": "labels"}, r"records\['y'\] is a str and no array"),
    ],
)
def test_what_holds_no_records_is_refused(records: Any, said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        Source(records)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (["a", "b"], r"records\[0\] is str of .* and no array of numbers: give decode="),
        (np.array(["a", "b"]), "records is an array of <U1 and no array of numbers: give decode="),
        ((IMAGES, np.array([object()] * N)), r"records\[1\] is an array of object"),
        ([{"image": IMAGES[0], "name": b"a"}], r"records\[0\]\['name'\] is bytes of .* and no array of numbers"),
        ([object()], r"records\[0\] is object of object"),
        ([None], r"records\[0\] is None, which has no arrays"),
        ([np.timedelta64(1, "s")], "no array of numbers"),
        ([2**70], "no array of numbers"),
    ],
)
def test_what_is_no_number_is_refused_when_the_first_record_is_read(records: Any, said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        _ = Source(records).like


def test_masks_of_numpys_masked_arrays_are_not_dropped() -> None:
    masked = np.ma.masked_values(np.arange(8, dtype=np.float32).reshape(4, 2), 3)
    with pytest.raises(jaxdp.UsageError, match="records is a masked array, and its mask would be lost"):
        Source(masked)
    read = Source([np.zeros(2, np.float32), masked[1]])
    with pytest.raises(jaxdp.UsageError, match=r"records\[1\] is a masked array"):
        read.read(np.array([1]))
    decoded = Source(range(4), decode=lambda index: masked[index] if index else np.zeros(2, np.float32))
    with pytest.raises(jaxdp.UsageError, match=r"records\[2\] is a masked array"):
        decoded.read(np.array([0, 2]))


@pytest.mark.parametrize("field", [{"decode": 3}, {"threads": 0}, {"threads": 1.5}, {"ahead": 0}, {"ahead": "all"}])
def test_fields_of_another_kind_are_refused(field: dict[str, Any], unchecked: None) -> None:
    with pytest.raises(jaxdp.UsageError, match=next(iter(field))):
        Source(IMAGES, **field)


@pytest.mark.parametrize("indices", [[0, N], [-1], [[1]], [0.5], [True], [np.timedelta64(1, "s")], 3])
def test_indices_of_no_record_are_refused(source: Source, indices: Any, unchecked: None) -> None:
    with pytest.raises(jaxdp.UsageError, match="indices (is|has)"):
        source.read(np.array(indices))


def unreadable() -> list[Source]:
    class Alone:
        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise OSError("the disk is gone")
            return PAIRS[index]

    class Both(Alone):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    return [Source(Alone()), Source(Both())]


@pytest.mark.parametrize("source", unreadable())
def test_a_record_that_can_not_be_read_is_named_with_the_reason(source: Source) -> None:
    with pytest.raises(jaxdp.UsageError, match=r"records\[5\] can't be read: OSError: the disk is gone") as caught:
        source.read(np.array([4, 5, 6]))
    assert isinstance(caught.value.__cause__, OSError)
    np.testing.assert_array_equal(source.read(np.array([4, 6]))[1], LABELS[[4, 6]])


def test_a_record_that_can_not_be_decoded_is_named_with_the_reason(tmp_path: Path) -> None:
    paths = files(tmp_path)
    paths[5].unlink()
    with pytest.raises(jaxdp.UsageError, match=r"decode fails for records\[5\]: FileNotFoundError") as caught:
        Source(paths, decoded).read(np.array([4, 5, 6]))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_fewer_records_than_asked_for_are_an_error() -> None:
    class Short(Together):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return super().__getitems__(indices)[:2]

    with pytest.raises(jaxdp.UsageError, match=r"__getitems__\(\[4, 5, 6\]\) gave 2 records for 3"):
        Source(Short(PAIRS)).read(np.array([4, 5, 6]))


class Reused:
    """Records in one array, which is filled with one after another."""

    def __init__(self, filled: Callable[[np.ndarray], Any] = lambda buffer: buffer) -> None:
        self.filled, self.buffer = filled, np.zeros(IMAGES.shape[1:], np.uint8)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        self.buffer[...] = IMAGES[index]
        return self.filled(self.buffer)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Foreign:
    """An array of another library, in the memory of NumPy's."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array if not copy else self.array.copy()


@pytest.mark.parametrize(
    "source",
    [
        Source(Reused()),
        Source(Reused(), decode=lambda image: image),
        Source(Reused(lambda buffer: {"image": buffer, "label": 3}), decode=lambda record: record["image"]),
        Source(Reused(Foreign), decode=np.asarray),
        Source(Reused(lambda buffer: (buffer[:2], buffer[2:])), decode=np.concatenate),
    ],
)
def test_records_that_are_read_together_into_one_array_are_read_one_by_one(source: Source) -> None:
    indices = np.array([4, 17, 5, 4])
    np.testing.assert_array_equal(source.read(indices), IMAGES[indices])


def test_what_decode_does_in_a_record_stays_in_it(tmp_path: Path) -> None:
    def centred(image: np.ndarray) -> np.ndarray:
        image -= 128
        return image

    images = IMAGES.astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r+")
    for source in (Source(images.copy(), centred), Source(mapped, centred)):
        for _ in range(2):
            np.testing.assert_array_equal(source.read(np.arange(N)), images - 128)
    np.testing.assert_array_equal(mapped, images)


@pytest.mark.parametrize("size", [0, 300, 700])
def test_another_length_of_a_memory_mapped_file_is_an_error(size: int, tmp_path: Path) -> None:
    source = Source((memmap(tmp_path / "x.npy", IMAGES), LABELS))
    source.read(np.array([3]))
    os.truncate(tmp_path / "x.npy", size)
    with pytest.raises(jaxdp.UsageError, match=rf"x.npy of records had 608 bytes and has {size} now"):
        source.read(np.array([3]))


def test_a_memory_mapped_file_without_a_name_is_read_on(tmp_path: Path) -> None:
    source = Source(memmap(tmp_path / "x.npy", IMAGES))
    (tmp_path / "x.npy").unlink()
    np.testing.assert_array_equal(source.read(np.array([3])), IMAGES[[3]])


@pytest.mark.parametrize("change", [PAIRS[:2], []])
@pytest.mark.parametrize("kept", [list, Together])
def test_another_length_than_at_first_is_an_error(change: list[Any], kept: Callable) -> None:
    records = list(PAIRS)
    source = Source(records if kept is list else Together(records))
    source.read(np.array([3]))
    records[30:] = change
    with pytest.raises(jaxdp.UsageError, match=rf"records had 40 records and has {30 + len(change)} now"):
        source.read(np.array([3]))
