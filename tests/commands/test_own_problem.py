"""A data set and a model of a user's own: a line each, and `jaxdp train` does with them what it does with its own."""

import csv
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from command import interrupt_at_epoch_of, refused, result

import jaxdp
from jaxdp import cli, data, models
from jaxdp.clipping import takes_rng
from jaxdp.commands.train import TrainOptions, train
from jaxdp.runs._folder import RunFolder


class Blobs(nn.Module):
    """A model that knows nothing of the package: points of the plane to classes."""

    num_classes: int
    width: int = 8

    @nn.compact
    def __call__(self, point: Any, *, train: bool) -> Any:
        del train
        return nn.Dense(self.num_classes)(jnp.tanh(nn.Dense(self.width)(point)))


def blobs() -> data.Labelled:
    """600 points about three centres."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 3, 600).astype(np.int32)
    centres = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    points = (centres[classes] + 0.4 * rng.normal(size=(600, 2))).astype(np.float32)
    return data.Labelled(
        name="three blobs",
        train=(points[:500], classes[:500]),
        test=(points[500:], classes[500:]),
        task=data.Classes(3),
    )


@pytest.fixture(autouse=True)
def _plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(data.DATASETS, "blobs", blobs)
    monkeypatch.setitem(models.MODELS, "blobs-net", Blobs)


COMMAND = ["train", "--dataset", "blobs", "--model", "blobs-net", "--epochs", "6", "--batch-size", "100", "--lr", "1"]
PRIVATE = ["--delta", "1e-3", "--target-epsilon", "8", "--seed", "2"]


@pytest.mark.slow
def test_a_data_set_and_a_model_of_ones_own_are_trained_and_come_back(tmp_path: Path) -> None:
    options = TrainOptions(
        dataset="blobs", model="blobs-net", epochs=3, batch_size=50, lr=1.0, delta=1e-3, noise_multiplier=0.8, seed=2
    )
    run = train(TrainOptions(**{**vars(options), "output": tmp_path / "run"}))
    assert run.summary is not None
    assert run.statement is not None
    assert run.summary["dataset"] == "three blobs"
    assert run.summary["model"] == "blobs-net"
    assert run.summary["test_accuracy"] > 0.9
    described = jaxdp.DPSGD(num_examples=500, expected_batch_size=50, steps=30, clip_norm=1.0, noise_multiplier=0.8)
    assert run.summary["epsilon"]["rdp"] == described.epsilon(delta=1e-3)
    again = jaxdp.load_run(tmp_path / "run")
    points, classes = blobs().test
    probabilities = again.predict(points)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (probabilities.argmax(axis=1) == classes).mean() == run.summary["test_accuracy"]
    published = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "test_accuracy" not in published  # nobody said that the test points are public
    with pytest.raises(jaxdp.UsageError, match=r"the model takes float32 \[n, 2\]"):
        again.predict(points.astype(np.float64))
    cli.main(["predict", str(tmp_path / "run"), "--output", str(tmp_path / "predicted.csv")])
    with (tmp_path / "predicted.csv").open() as file:
        labels = [int(line["label"]) for line in csv.DictReader(file)]
    np.testing.assert_array_equal(labels, probabilities.argmax(axis=1))


@pytest.mark.slow
def test_a_run_of_them_that_is_broken_off_goes_on_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [*COMMAND, *PRIVATE, "--holdout", "50"]
    cli.main([*whole, "--output", str(tmp_path / "whole")])
    interrupt_at_epoch_of(whole, 3, tmp_path / "broken", monkeypatch)
    cli.main(["train", "--resume", str(tmp_path / "broken")])
    assert result(tmp_path / "broken") == result(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_is_broken_off_is_not_gone_on_with_under_another_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def heights(upper: float) -> data.Labelled:
        as_numbers = lambda part: (part[0], part[1].astype(np.float32)[:, None])
        train, test = (as_numbers(part) for part in (blobs().train, blobs().test))
        return data.Labelled(name="heights", train=train, test=test, task=data.Numbers(1, 0.0, upper))

    monkeypatch.setitem(data.DATASETS, "blobs", lambda: heights(2.0))
    interrupt_at_epoch_of([*COMMAND, *PRIVATE], 3, tmp_path / "run", monkeypatch)
    capsys.readouterr()
    monkeypatch.setitem(data.DATASETS, "blobs", lambda: heights(20.0))
    assert "the bounds of what is predicted" in refused(["train", "--resume", str(tmp_path / "run")], capsys)
    monkeypatch.setitem(data.DATASETS, "blobs", lambda: heights(2.0))
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert jaxdp.load_run(tmp_path / "run").summary is not None


@pytest.mark.slow
def test_what_was_evaluated_on_people_held_back_stays_private_whatever_is_said_of_them_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "erase", _killed)
        with pytest.raises(SystemExit):
            cli.main([*COMMAND, *PRIVATE, "--output", str(tmp_path / "run")])
    monkeypatch.setitem(data.DATASETS, "blobs", lambda: replace(blobs(), public_test=True))
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert "test_accuracy" not in json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "are not protected either" in (tmp_path / "run" / "statement.txt").read_text()


def _killed(_: RunFolder) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_without_privacy_they_train_as_well(tmp_path: Path) -> None:
    cli.main([*COMMAND, "--no-dp", "--output", str(tmp_path / "run")])
    summary = jaxdp.load_run(tmp_path / "run").summary
    assert summary is not None
    assert summary["test_accuracy"] > 0.95


@pytest.mark.slow
def test_a_program_that_has_not_plugged_the_model_in_is_told_so_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main([*COMMAND, "--no-dp", "--epochs", "1", "--output", str(tmp_path / "run")])
    capsys.readouterr()
    monkeypatch.delitem(models.MODELS, "blobs-net")
    with pytest.raises(jaxdp.UsageError, match=r"--model=blobs-net is not known.*jaxdp\.models\.MODELS first"):
        jaxdp.load_run(tmp_path / "run")
    assert "--model=blobs-net is not known" in refused(["predict", str(tmp_path / "run")], capsys)
    assert "--model=blobs-net is not known" in refused(["train", "--resume", str(tmp_path / "run")], capsys)
    assert "blobs-net" not in json.dumps(sorted(sys.modules))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--dataset", "blobs"),
            "--model=scattering takes images, and an input of these data has shape (2,): give blobs-net, dense",
        ),
        (("--model", "blobs-net", "--activation", "relu"), "has no effect with --model blobs-net, which takes none"),
        (
            ("--dataset", "blobs", "--model", "dense", "--precision", "bf16"),
            "no effect on --dataset blobs, which is no table",
        ),
        (
            ("--dataset", "blobs", "--model", "blobs-net", "--holdout", "500"),
            "leaves none of the 500 training examples",
        ),
        (("--dataset", "blob"), "'blob' is not prepared"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(["train", *arguments], capsys)


@pytest.mark.slow
def test_images_of_ones_own_are_a_data_set_for_all_that_takes_images(
    tmp_path: Path, tfds_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = data.load("mnist", tfds_dir)
    monkeypatch.setitem(data.DATASETS, "digits", lambda: digits._replace(name="my digits"))
    assert data.load("digits").name == "my digits"
    command = ["train", "--dataset", "digits", "--no-dp", "--epochs", "1", "--batch-size", "64", "--model", "mlp"]
    cli.main([*command, "--output", str(tmp_path / "run")])
    summary = jaxdp.load_run(tmp_path / "run").summary
    assert summary is not None
    assert summary["dataset"] == "my digits"
    capsys.readouterr()
    assert "'blobs' is not of images" in refused(
        ["pate", "--dataset", "blobs", "--output", str(tmp_path / "x")], capsys
    )


def test_images_that_make_no_graph_are_refused_before_the_run_is_begun(
    tmp_path: Path, tfds_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = data.load("mnist", tfds_dir)
    tiny = digits._replace(train_images=digits.train_images[:, :3, :3], test_images=digits.test_images[:, :3, :3])
    monkeypatch.setitem(data.DATASETS, "tiny", lambda: tiny)
    command = ["pate", "--delta", "1e-3", "--teachers", "8", "--output", str(tmp_path / "run")]
    few = [*command, "--data-dir", str(tfds_dir), "--public", "1", "--queries", "1"]
    assert "--public=1 makes no graph: give at least 2, or --teacher-model strided" in refused(few, capsys)
    said = refused([*command, "--dataset", "tiny", "--queries", "20"], capsys)
    assert "images have 3 x 3" in said
    assert "or --teacher-model strided --student fixmatch" in said
    assert not (tmp_path / "run").exists()


class Twofold(Blobs):
    """A model that prepares two arrays."""

    def prepare(self, point: Any) -> Any:
        """Of one input."""
        return point, point


def test_a_model_that_prepares_more_than_an_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "twofold", Twofold)
    with pytest.raises(
        jaxdp.UsageError, match="--model=twofold prepares tuple of an input: let `prepare` return one array"
    ):
        models.classifier("twofold", data.Classes(3), input_shape=(2,), input_dtype=np.float32)


@pytest.mark.slow
def test_a_model_of_ones_own_learns_a_table(tmp_path: Path) -> None:
    data.write_lookalike(tmp_path, rows=300, features=6, targets=3, test_rows=5)
    files = {"features": tmp_path / "train_features.csv", "targets": tmp_path / "train_targets_scored.csv"}
    options = TrainOptions(
        dataset="csv", **files, bounds=(-10.0, 10.0), model="blobs-net", dp=False, epochs=1, output=tmp_path / "run"
    )
    run = train(options)
    assert run.encoding is not None
    _, features = run.encoding.read(tmp_path / "test_features.csv")
    assert run.predict(features).shape == (5, 3)


class Dropping(nn.Module):
    """A model that drops units, by a rate that is no field."""

    num_classes: int

    @nn.compact
    def __call__(self, point: Any, *, train: bool) -> Any:
        hidden = nn.Dropout(0.5, deterministic=not train)(jnp.tanh(nn.Dense(8)(point)))
        return nn.Dense(self.num_classes)(hidden)


def test_a_model_of_ones_own_may_drop_units_and_must_have_the_tasks_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "dropping", Dropping)
    how: dict[str, Any] = {"input_shape": (2,), "input_dtype": np.float32}
    assert takes_rng(models.classifier("dropping", data.Classes(3), **how).loss)
    assert not takes_rng(models.classifier("blobs-net", data.Classes(3), **how).loss)
    monkeypatch.setitem(models.MODELS, "two", lambda num_classes: Blobs(2))
    with pytest.raises(
        jaxdp.UsageError, match=r"--model=two gives outputs of shape \(2,\), and Classes\(count=3\) needs \(3,\)"
    ):
        models.classifier("two", data.Classes(3), **how)


@dataclass(frozen=True)
class Angles:
    """A task of a user's own: the sine and the cosine of an angle, by squared error."""

    outputs: int = 2

    kind: ClassVar[str] = "angles"

    @property
    def targets(self) -> int:
        return 1

    def check_labels(self, labels: Any) -> None:
        assert labels.shape[1:] == (2,)

    def loss(self, logits: Any, label: Any) -> Any:
        error = jnp.sum((logits - label) ** 2)
        return error, (error < 0.1).astype(jnp.float32)

    def probabilities(self, logits: Any) -> Any:
        return logits

    def evaluate(self, probabilities: Any, labels: Any) -> tuple[float, float]:
        errors = ((probabilities - labels) ** 2).sum(axis=1)
        return float(errors.mean()), float((errors < 0.1).mean())


@pytest.mark.slow
def test_a_task_of_ones_own_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    angle = np.random.default_rng(0).uniform(-3, 3, 200)
    inputs = np.stack([angle, angle**2], axis=1).astype(np.float32)
    labels = np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
    parts = {"train": (inputs[:150], labels[:150]), "test": (inputs[150:], labels[150:])}
    monkeypatch.setitem(data.TASKS, "angles", Angles)
    monkeypatch.setitem(data.DATASETS, "angles", lambda: data.Labelled(name="angles", task=Angles(), **parts))
    options = TrainOptions(
        dataset="angles", model="blobs-net", dp=False, epochs=20, batch_size=50, lr=0.2, seed=0, output=tmp_path / "run"
    )
    run = train(options)
    assert run.metrics[-1]["test_loss"] < 0.5 * run.metrics[0]["test_loss"]
    monkeypatch.delitem(data.TASKS, "angles")
    with pytest.raises(jaxdp.UsageError, match="the task 'angles' is none of classes, targets"):
        jaxdp.load_run(tmp_path / "run")
