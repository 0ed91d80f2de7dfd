"""TFDS data sets prepared on disk, read without TensorFlow and without a network."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jaxdp
from jaxdp import data
from jaxdp.data import _tfds


def test_a_prepared_data_set_is_read_as_it_was_stored(tfds_dir: Path) -> None:
    small, mnist = data.load("mnist", tfds_dir), data.load()
    assert small.train_images.shape == (512, 28, 28, 1)
    assert small.test_images.shape == (128, 28, 28, 1)
    assert small.num_classes == 10
    stored = {image.tobytes(): label for image, label in zip(mnist.train_images, mnist.train_labels, strict=True)}
    known = [
        stored.get(image.tobytes()) == label
        for image, label in zip(small.train_images, small.train_labels, strict=True)
    ]
    assert np.mean(known) == 1
    assert "tensorflow" not in sys.modules


def test_a_version_can_be_named(tfds_dir: Path) -> None:
    assert len(data.load("mnist:3.0.1", tfds_dir).train_labels) == 512


def test_decoded_arrays_come_from_the_cache_the_second_time(tfds_dir: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = data.load("mnist", tfds_dir)
    (cached,) = (tmp_path / "jaxdp").iterdir()
    monkeypatch.setattr(_tfds, "_decode", lambda *arguments: pytest.fail("decoded again"))
    np.testing.assert_array_equal(first.train_images, data.load("mnist", tfds_dir).train_images)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached.write_bytes(b"damaged")
    np.testing.assert_array_equal(first.train_images, data.load("mnist", tfds_dir).train_images)


def test_changed_files_are_not_taken_from_the_cache(tfds_dir: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy = tmp_path / "tfds"
    shutil.copytree(tfds_dir, copy)
    data.load("mnist", copy)
    folder = copy / "mnist" / "3.0.1"
    shutil.copy(folder / "mnist-test.array_record-00000-of-00001", folder / "extra")
    data.load("mnist", copy)
    assert len(list((tmp_path / "cache" / "jaxdp").iterdir())) == 2


def test_what_is_not_prepared_is_named_with_the_command_that_prepares_it(tfds_dir: Path) -> None:
    with pytest.raises(
        jaxdp.UsageError, match=r"'cifar10' is not prepared.*there: mnist.*\[prepare\].*download_and_prepare"
    ):
        data.load("cifar10", tfds_dir)


@pytest.mark.parametrize("name", ["mnst", "MNIST"])
def test_a_name_that_is_misspelt_is_answered_with_the_one_that_is_embedded(name: str) -> None:
    with pytest.raises(jaxdp.UsageError, match="^did you mean mnist?"):
        data.load(name)


def test_a_csv_file_in_the_place_of_a_name_is_told_how_it_is_trained_on() -> None:
    with pytest.raises(jaxdp.UsageError, match="give --dataset csv --features patients.CSV"):
        data.load("patients.CSV")


@pytest.mark.parametrize("name", ["/", "../mnist", ".", "mnist/", "/etc", "mnist\0"])
def test_a_path_is_no_name(name: str, tfds_dir: Path) -> None:
    with pytest.raises(jaxdp.UsageError, match="is not a name in TFDS"):
        data.load(name, tfds_dir)


def test_the_tfrecord_format_is_refused_with_the_command_that_prepares_another(tfds_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tfds_dir, tmp_path / "tfds")
    info = tmp_path / "tfds" / "mnist" / "3.0.1" / "dataset_info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"fileFormat": "tfrecord"}))
    with pytest.raises(jaxdp.UsageError, match=r"stored as tfrecord.*file_format='array_record'"):
        data.load("mnist", tmp_path / "tfds")


def test_images_of_another_type_than_pixels_are_refused(tfds_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tfds_dir, tmp_path / "tfds")
    features = tmp_path / "tfds" / "mnist" / "3.0.1" / "features.json"
    features.write_text(features.read_text().replace("uint8", "uint16"))
    with pytest.raises(jaxdp.UsageError, match="images of uint16, and jaxdp train reads those of uint8"):
        data.load("mnist", tmp_path / "tfds")


def test_of_several_configurations_none_is_chosen_in_silence(tfds_dir: Path, tmp_path: Path) -> None:
    for config in ("fog", "identity"):
        for version in ("3.0.1", "3.0.1.incompleteA9"):
            shutil.copytree(tfds_dir / "mnist" / "3.0.1", tmp_path / "mnist" / config / version)
    with pytest.raises(jaxdp.UsageError, match=r"several configurations .* name one of mnist/fog, mnist/identity$"):
        data.load("mnist", tmp_path)
    assert _tfds.open_tfds("mnist/fog", tmp_path).folder == tmp_path / "mnist" / "fog" / "3.0.1"


def test_a_data_set_without_one_image_and_one_label_is_refused(tfds_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tfds_dir, tmp_path / "tfds")
    folder = tmp_path / "tfds" / "mnist" / "3.0.1"
    features = json.loads((folder / "features.json").read_text())
    del features["featuresDict"]["features"]["label"]
    (folder / "features.json").write_text(json.dumps(features))
    with pytest.raises(jaxdp.UsageError, match="exactly one image and one class label"):
        data.load("mnist", tmp_path / "tfds")


def _without_a_file(folder: Path) -> None:
    next(folder.glob("mnist-train*")).unlink()


def _cut_short(folder: Path) -> None:
    file = next(folder.glob("mnist-train*"))
    file.write_bytes(file.read_bytes()[:5000])


def _with_other_bytes(folder: Path) -> None:
    file = next(folder.glob("mnist-train*"))
    content = bytearray(file.read_bytes())
    content[3000:60000] = bytes(57000)
    file.write_bytes(content)


def _without_features(folder: Path) -> None:
    (folder / "features.json").unlink()


def _with_broken_features(folder: Path) -> None:
    (folder / "features.json").write_text("{")


def _with_a_broken_description(folder: Path) -> None:
    (folder / "dataset_info.json").write_text("{")


def _with_no_records(folder: Path) -> None:
    described = json.loads((folder / "dataset_info.json").read_text())
    for split in described["splits"]:
        split["shardLengths"] = ["0"]
    (folder / "dataset_info.json").write_text(json.dumps(described))


@pytest.mark.parametrize(
    "damage",
    [
        _without_a_file,
        _cut_short,
        _with_other_bytes,
        _without_features,
        _with_broken_features,
        _with_a_broken_description,
        _with_no_records,
    ],
)
def test_damage_is_told_with_the_data_set(
    damage: Callable[[Path], None], tfds_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(tfds_dir, tmp_path / "tfds")
    damage(tmp_path / "tfds" / "mnist" / "3.0.1")
    with pytest.raises(
        jaxdp.UsageError,
        match=r"dataset 'mnist' in .* can't be read \(.*\): where its files may be read, it is damaged; prepare it anew",
    ):
        data.load_labelled("mnist", tmp_path / "tfds")
    assert not (tmp_path / "cache").exists()


def test_test_images_are_read_without_the_others(tfds_dir: Path) -> None:
    stored = data.prepared("mnist", tfds_dir)
    assert stored is not None
    shown = []
    images = stored.test_images(lambda rows, said: shown.append(said) or rows)
    np.testing.assert_array_equal(images, data.load("mnist", tfds_dir).test_images)
    assert shown == ["decoding mnist test"]
