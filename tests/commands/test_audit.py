"""Canaries from the start of a run to the audit of its model, and audits of scores from elsewhere."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command import interrupt_at_epoch_of, refused, result

import jaxdp
from jaxdp import audit, cli
from jaxdp.commands.train._canaries import weighted
from jaxdp.runs import _canaries as canaries

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"
TRAIN = ["train", "--model", "mlp", "--data-dir", str(FIXTURES), "--batch-size", "64", "--seed", "3", "--delta", "1e-3"]
PLAIN = [*TRAIN[:-2], "--no-dp", "--lr", "0.1"]
FILES = ("audit.json", "audit.png", "audit.txt")


def scores_of(path: Path, shift: float, header: str = "score,member") -> Path:
    rng = np.random.default_rng(0)
    members = rng.random(400) < 0.5
    scores = rng.normal(size=400) + shift * members
    lines = [f"{score},{int(member)}" for score, member in zip(scores, members, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.mark.slow
def test_scores_of_a_file_are_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = scores_of(tmp_path / "mine.csv", 2.0)
    cli.main(["audit", str(file), "--delta", "1e-4", "--claimed-epsilon", "8", "--json"])
    said = json.loads(capsys.readouterr().out)
    folder = tmp_path / "mine-audit"
    assert said == json.loads((folder / "audit.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    content = np.loadtxt(file, delimiter=",", skiprows=1)
    assert said["epsilon"] == audit.epsilon_one_run(content[:, 0], content[:, 1] > 0, delta=1e-4) > 0.3
    assert not said["contradicts"]
    assert "That doesn't contradict the claim of ε = 8.0000" in (folder / "audit.txt").read_text()
    assert "give --overwrite to replace it" in refused(["audit", str(file)], capsys)
    cli.main(["audit", str(file), "--overwrite"])
    shown = capsys.readouterr().out
    assert "400, " in shown
    assert "No ε was claimed" in shown


@pytest.mark.slow
@pytest.mark.parametrize("scores", [1 + np.arange(3) * 2.0**-52, 1e15 + np.arange(3) / 8, np.ones(3)], ids=str)
def test_scores_that_hardly_differ_are_audited(scores: np.ndarray, tmp_path: Path) -> None:
    lines = [f"{float(scores[i % 3])!r},{i % 2}" for i in range(200)]
    (tmp_path / "mine.csv").write_text("\n".join(["score,member", *lines]) + "\n")
    cli.main(["audit", str(tmp_path / "mine.csv")])
    assert sorted(path.name for path in (tmp_path / "mine-audit").iterdir()) == sorted(FILES)


@pytest.mark.slow
def test_what_else_lies_in_the_folder_keeps_its_rights(tmp_path: Path) -> None:
    script, file = tmp_path / "script.sh", scores_of(tmp_path / "mine.csv", 2.0)
    script.touch()
    script.chmod(0o755)
    tmp_path.chmod(0o755)
    cli.main(["audit", str(file), "--output", str(tmp_path)])
    cli.main(["audit", str(file), "--output", str(tmp_path / "new" / "folder")])
    rights = lambda path: path.stat().st_mode & 0o777
    assert (rights(tmp_path), rights(script), rights(tmp_path / "new" / "folder")) == (0o755, 0o755, 0o700)
    assert {rights(tmp_path / name) for name in FILES} == {0o600}


def test_a_claim_that_is_contradicted_ends_with_code_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["audit", str(scores_of(tmp_path / "mine.csv", 4.0)), "--claimed-epsilon", "1"])
    assert exit_.value.code == 1
    assert "THAT CONTRADICTS the claim of ε = 1.0000" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("shift", [2.0, -2.0])
def test_scores_the_other_way_round_are_asked_about(
    shift: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["audit", str(scores_of(tmp_path / "mine.csv", shift))])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ("are higher scores those of canaries that seem to have been in?" in shown) == (shift < 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n", "has the columns a, b"),
        ("", "of an empty file"),
        ("score,member\n1,1\nx,0\n", "line 3: score is 'x'"),
        ("score,member\n1,1\n1,maybe\n", "line 3: member is 'maybe'"),
        ("score,member\n1,1,1\n", "line 2 has 3 values"),
        ("score,member\n1,1\nnan,0\n2,1\n1,0\n", "1 of 4 scores are NaN"),
        ("score,member\n1,1\n", "1 of 1 canaries were in and 0 out"),
        ('score,member\n"1', "can't be read"),
    ],
)
def test_a_file_that_holds_no_scores_is_refused(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.csv").write_text(content)
    assert said in refused(["audit", str(tmp_path / "mine.csv")], capsys)
    assert not (tmp_path / "mine-audit").exists()


@pytest.mark.slow
def test_a_run_is_refused_without_canaries_and_where_a_claim_is_given(
    on_one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "train with them from the start, by jaxdp train --audit-canaries" in refused(["audit", str(on_one)], capsys)
    assert "--delta=0.1 has no effect on a run" in refused(["audit", str(on_one), "--delta", "0.1"], capsys)
    assert "holds no run" in refused(["audit", str(tmp_path)], capsys)
    assert "can't be read" in refused(["audit", str(tmp_path / "nowhere")], capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--audit-canaries", "0"), "--audit-canaries=0"),
        (("--audit-canaries", "31"), "give 32 or more"),
        (("--audit-canaries", "513"), "exceeds the 512 training examples"),
        (("--audit-canaries", "100", "--reading", "disk"), "give --reading memory"),
        (("--audit-canaries", "100", "--canaries", "both"), "is neither wrong-labels nor noise, nor a .npz file"),
        (("--audit-canaries", "100", "--canaries", "nowhere.npz"), "can't be read (No such file"),
        (("--canaries", "noise"), "has no effect without canaries"),
    ],
)
def test_canaries_that_cannot_be_planted_are_refused(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused([*TRAIN, "--output", str(tmp_path / "run"), *arguments], capsys)
    assert not (tmp_path / "run").exists()


def test_tables_have_no_wrong_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a table's records have targets" in refused(["train", "--dataset", "csv", "--audit-canaries", "100"], capsys)


@pytest.mark.slow
def test_an_example_that_its_coin_keeps_out_adds_nothing() -> None:
    params = {"w": jnp.arange(12.0).reshape(4, 3)}
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 3, 6)
    weights = np.array([1, 0, 1, 0, 1, 1], np.float32)

    def loss(params: dict[str, jax.Array], example: tuple[jax.Array, jax.Array]) -> jax.Array:
        return -jax.nn.log_softmax(example[0] @ params["w"])[example[1]]

    for method in ("vmap", "ghost"):
        clipped = lambda loss, method=method: jax.jit(jaxdp.clipped_grad(loss, clip_norm=0.5, method=method))
        with_weights = clipped(weighted(loss))(params, (inputs, labels, weights), mask=jnp.ones(6, bool))
        kept = weights > 0
        without = clipped(loss)(params, (inputs[kept], labels[kept]), mask=jnp.ones(4, bool))
        np.testing.assert_allclose(with_weights.grads["w"], without.grads["w"], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_model_without_privacy_is_told_apart_and_one_with_privacy_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main([*PLAIN, "--epochs", "100", "--audit-canaries", "400", "--output", str(tmp_path / "plain")])
    cli.main(
        [*TRAIN, "--epochs", "20", "--audit-canaries", "400", "--target-epsilon", "2", "--output", str(tmp_path / "dp")]
    )
    capsys.readouterr()
    found = {}
    for name in ("plain", "dp"):
        cli.main(["audit", str(tmp_path / name), "--json"])
        found[name] = json.loads(capsys.readouterr().out)
        assert sorted(path.name for path in (tmp_path / name / "private" / "audit").iterdir()) == sorted(FILES)
    assert found["plain"]["auroc"] > 0.9
    assert found["plain"]["epsilon"] > 1
    assert found["plain"]["claimed_epsilon"] is None
    assert not found["dp"]["contradicts"]
    assert found["dp"]["claimed_epsilon"] <= 2
    assert found["dp"]["epsilon"] < found["plain"]["epsilon"]
    assert "400 of the training examples, chosen at random, have wrong labels" in (
        tmp_path / "dp" / "statement.txt"
    ).read_text("utf-8")
    planted = canaries.from_bytes(canaries.read(tmp_path / "dp" / "private"), tmp_path)
    assert len(np.unique(planted.rows)) == 400
    assert (tmp_path / "dp" / "private" / canaries.FILE).stat().st_mode & 0o077 == 0


def own(
    path: Path, *, number: int = 40, shape: tuple[int, ...] = (28, 28, 1), dtype: str = "uint8", top: int = 9
) -> Path:
    rng = np.random.default_rng(0)
    inputs, labels = rng.integers(0, 255, (number, *shape)).astype(dtype), rng.integers(0, top + 1, number)
    np.savez(path, inputs=inputs, labels=labels)
    return path


@pytest.mark.slow_but("change1-has inputs float32[40, 28, 28, 1]", "change3-and the data 10 classes from 0")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": (28, 28)}, "has inputs uint8[40, 28, 28]"),
        ({"dtype": "float32"}, "has inputs float32[40, 28, 28, 1]"),
        ({"number": 39}, "has 39 labels"),
        ({"top": 99}, "and the data 10 classes from 0"),
    ],
)
def test_canaries_of_ones_own_must_be_as_the_data(
    change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own(tmp_path / "own.npz", **change)
    command = [*TRAIN, "--audit-canaries", "40", "--canaries", str(file), "--output", str(tmp_path / "run")]
    assert said in refused(command, capsys)
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_of_canaries_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compressed, so that a byte breaks the compression and not only a checksum."""
    file = own(tmp_path / "own.npz")
    np.savez_compressed(file, **np.load(file))
    content = bytearray(file.read_bytes())
    content[60] ^= 0xFF
    file.write_bytes(content)
    command = [*TRAIN, "--audit-canaries", "40", "--canaries", str(file), "--output", str(tmp_path / "run")]
    assert f"--canaries={file} can't be read" in refused(command, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "file"])
def test_canaries_of_noise_and_of_ones_own_are_trained_on_and_audited(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own(tmp_path / "own.npz", number=50)
    canary = ["--audit-canaries", "40", "--canaries", "noise" if kind == "noise" else str(file)]
    more = [*PLAIN, "--epochs", "30", *canary]
    interrupt_at_epoch_of(more, 2, tmp_path / "run", monkeypatch)
    given = np.load(file)
    file.unlink()
    cli.main(["train", "--resume", str(tmp_path / "run")])
    planted = canaries.from_bytes(canaries.read(tmp_path / "run" / "private"), tmp_path)
    assert planted.inputs.dtype == np.uint8
    if kind == "file":
        np.testing.assert_array_equal(planted.inputs, given["inputs"][:40])
        np.testing.assert_array_equal(planted.labels, given["labels"][:40])
    else:
        assert 120 < planted.inputs.mean() < 135
    capsys.readouterr()
    for attack in ("loss", "entropy", "modified-entropy"):
        cli.main(["audit", str(tmp_path / "run"), "--attack", attack, "--overwrite", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert found["auroc"] > (0.9 if attack != "entropy" else 0.5)
    text = (tmp_path / "run" / "private" / "audit" / "audit.txt").read_text()
    assert "looks at how sure the final model is of it, and of the others" in text


@pytest.mark.slow
@pytest.mark.parametrize("train", [TRAIN, PLAIN], ids=["dp", "no-dp"])
def test_a_run_with_canaries_that_is_broken_off_goes_on_to_the_same_result(
    train: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [*train, "--epochs", "3", "--audit-canaries", "100", *(["--augmentations", "2"] if train is TRAIN else [])]
    cli.main([*more, "--output", str(tmp_path / "whole")])
    interrupt_at_epoch_of(more, 2, tmp_path / "run", monkeypatch)
    capsys.readouterr()
    assert "is under way" in refused(["audit", str(tmp_path / "run")], capsys)
    file = tmp_path / "run" / "private" / canaries.FILE
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert "the run's folder is damaged" in refused(["train", "--resume", str(tmp_path / "run")], capsys)
    planted = canaries.from_bytes(content, file)
    file.write_bytes(planted._replace(members=~planted.members).to_bytes())
    assert "not those the run was started with" in refused(["train", "--resume", str(tmp_path / "run")], capsys)
    file.write_bytes(content)
    from_disk = ["train", "--resume", str(tmp_path / "run"), "--reading", "disk"]
    assert "give --reading memory" in refused(from_disk, capsys)
    cli.main(["train", "--resume", str(tmp_path / "run")])
    shutil.copytree(tmp_path / "run", tmp_path / "shown", ignore=shutil.ignore_patterns("private"))
    assert "isn't here: the coins stay with the run's owner" in refused(["audit", str(tmp_path / "shown")], capsys)
    assert content == (tmp_path / "whole" / "private" / canaries.FILE).read_bytes()
    file.write_bytes(planted._replace(members=~planted.members).to_bytes())
    assert "not those the run was started with" in refused(["audit", str(tmp_path / "run")], capsys)
    file.write_bytes(content)
    if train is TRAIN:
        assert result(tmp_path / "run") == result(tmp_path / "whole")
    for a, b in zip(
        *(jax.tree.leaves(jaxdp.load_run(tmp_path / name).params) for name in ("run", "whole")), strict=True
    ):
        np.testing.assert_array_equal(a, b)
