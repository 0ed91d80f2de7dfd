"""A run that dies loses nothing: killed, damaged or interrupted, it resumes to the result of one that never stopped."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from command import interrupt_at_epoch_of, refused, result

import jaxdp
from jaxdp import _processes, cli
from jaxdp.clipping import Quantile
from jaxdp.commands.train import _config, _job
from jaxdp.runs import Checkpoint, CheckpointFolder, _loop
from jaxdp.runs._checkpoint import save_model
from jaxdp.runs._folder import RunFolder

EPOCHS = 4
LESS_LIKELY = ("empty files", "an empty folder")
COMMON = ["--batch-size", "64", "--delta", "1e-3", "--seed", "7", "--opt", "adam", "--noise-multiplier", "2"]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A private run of 8 steps an epoch, of a small network with dropout, so that every kind of key matters."""
    tables = tmp_path_factory.mktemp("tables")
    cli.main(["lookalike", str(tables), "--rows", "640", "--features", "6", "--targets", "3", "--test-rows", "20"])
    files = ["--features", str(tables / "train_features.csv"), "--targets", str(tables / "train_targets_scored.csv")]
    sizes = ["--bounds", "-10", "10", "--hidden", "8", "--epochs", str(EPOCHS)]
    return ["train", "--dataset", "csv", *files, *sizes, *COMMON]


@pytest.fixture(scope="module")
def undisturbed(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    cli.main([*options, "--output", str(folder)])
    return result(folder)


def damage(checkpoint: Path, how: str = "a flipped byte") -> None:
    """Damage a checkpoint: its largest file, or all of it."""
    if how == "an empty folder":
        shutil.rmtree(checkpoint)
        checkpoint.mkdir()
        return
    if how == "empty files":
        for path in checkpoint.rglob("*"):
            if path.is_file():
                path.write_bytes(b"")
        return
    victim = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_result(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch
) -> None:
    interrupt_at_epoch_of(options, 3, tmp_path / "run", monkeypatch)
    assert jaxdp.load_run(tmp_path / "run").summary is None
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert result(tmp_path / "run") == undisturbed
    seconds = [record["seconds"] for record in RunFolder(tmp_path / "run").metrics()]
    assert seconds == sorted(seconds), "the time is that of both processes"


@pytest.mark.slow
def test_a_run_without_a_seed_is_one_run_wherever_it_goes_on_before_its_first_checkpoint(
    options: list[str], tmp_path: Path, monkeypatch
) -> None:
    """Its nonce is published, and names one noise."""
    at = options.index("--seed")
    unseeded = [*options[:at], *options[at + 2 :], "--output", str(tmp_path / "run")]

    def break_off(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_job.Job, "_train", break_off)
        with pytest.raises(SystemExit):
            cli.main(unseeded)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for folder in ("run", "copy"):
        cli.main(["train", "--resume", str(tmp_path / folder)])
    assert result(tmp_path / "run") == result(tmp_path / "copy")
    assert "secret" not in (tmp_path / "run" / "private" / "run.json").read_text()
    summary = tmp_path / "copy" / "private" / "summary.json"
    summary.write_text(summary.read_text().replace('"noise_multiplier": 2.0', '"noise_multiplier": 9.0'))
    with pytest.raises(jaxdp.UsageError, match="is not as it was written"):
        jaxdp.load_run(tmp_path / "copy")


@pytest.mark.slow
def test_an_interrupted_run_resumes_with_another_number_of_examples_in_memory(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch
) -> None:
    interrupt_at_epoch_of(options, 3, tmp_path / "run", monkeypatch)
    before = (tmp_path / "run" / "config.json").read_bytes()
    cli.main(["train", "--resume", str(tmp_path / "run"), "--microbatch-size", "16"])
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    found, whole = result(tmp_path / "run"), undisturbed
    for a, b in zip(found[0], whole[0], strict=True):
        np.testing.assert_allclose(np.frombuffer(a, np.float32), np.frombuffer(b, np.float32), atol=1e-3)
    assert found[2]["run"]["microbatch_size"] == 16
    assert {**found[2], "run": None} == {**whole[2], "run": None}


@pytest.mark.slow
def test_a_run_whose_clip_norm_follows_a_quantile_resumes_to_the_same_bits(tmp_path: Path) -> None:
    run = jaxdp.DPSGD(
        num_examples=20,
        expected_batch_size=8,
        steps=6,
        clip_norm=0.1,
        noise_multiplier=1.0,
        rule=Quantile(count_noise=2.0),
    )
    params, data = {"w": jnp.ones(5)}, jax.random.normal(jax.random.key(7), (20, 5))
    step = run.make_step(lambda params, x: jnp.vdot(params["w"], x), optax.adam(0.1), self_check=False)
    fresh = lambda: step.init(params, jax.random.key(0))
    whole, _ = step.many(fresh(), data, num_steps=6)
    half, _ = step.many(fresh(), data, num_steps=3)
    with CheckpointFolder(tmp_path / "checkpoints", "a mark") as folder:
        folder.save(Checkpoint(half, {"loss": 1.5}))
    with CheckpointFolder(tmp_path / "checkpoints", "a mark") as folder:
        loaded, damaged = folder.load(Checkpoint(fresh(), {}))
    assert loaded is not None
    assert (loaded.state.step, loaded.totals, damaged) == (3, {"loss": 1.5}, [])
    assert float(loaded.state.rule_state.clip_norm) != pytest.approx(0.1, rel=1e-3)
    resumed, _ = step.many(loaded.state, data, num_steps=3)
    words = lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    for name in ("params", "opt_state", "rule_state", "noise_state"):
        for a, b in zip(*(jax.tree.leaves(getattr(each, name)) for each in (whole, resumed)), strict=True):
            np.testing.assert_array_equal(words(a), words(b))
    assert resumed.ledger == whole.ledger


@pytest.mark.slow
def test_a_folder_that_was_moved_meanwhile_is_not_made_anew(tmp_path: Path) -> None:
    run = jaxdp.DPSGD(num_examples=20, expected_batch_size=8, steps=6, clip_norm=0.1, noise_multiplier=1.0)
    step = run.make_step(lambda params, x: jnp.vdot(params["w"], x), optax.sgd(0.1), self_check=False)
    state, private = step.init({"w": jnp.ones(5)}, jax.random.key(0)), tmp_path / "private"
    private.mkdir(0o700)
    with CheckpointFolder(private / "checkpoints", "a mark") as folder:
        folder.save(Checkpoint(state, {}))
        private.rename(tmp_path / "moved")
        with pytest.raises(jaxdp.UsageError, match="is gone, where the run keeps its checkpoints"):
            folder.save(Checkpoint(state, {}))
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


@pytest.mark.slow
def test_a_model_that_cannot_be_written_is_told_of_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(jaxdp.UsageError, match=r"the model in .* can't be written .*: see that there is room"):
        save_model(tmp_path / "file" / "model", {"w": jnp.ones(5)}, 3)


@pytest.mark.slow
def test_resume_stands_for_the_output_folder_where_it_has_no_value(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch
) -> None:
    interrupt_at_epoch_of(options, 2, tmp_path / "run", monkeypatch)
    cli.main([*options, "--output", str(tmp_path / "run"), "--resume"])
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_checkpoints_within_an_epoch_resume_to_the_same_result(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch
) -> None:
    monkeypatch.setattr(_loop, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    interrupt_at_epoch_of(options, 3, tmp_path / "run", monkeypatch)
    newest = max(int(path.name) for path in (tmp_path / "run" / "private" / "checkpoints").iterdir())
    assert newest == 23  # the last step but one of epoch 3
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a flipped byte", *(pytest.param(how, marks=pytest.mark.slow) for how in LESS_LIKELY)])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    how: str, options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at_epoch_of(options, 4, tmp_path / "run", monkeypatch)
    damage(tmp_path / "run" / "private" / "checkpoints" / "24", how)
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert "is damaged" in capsys.readouterr().out
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_refused_even_where_the_configuration_was_made_to_fit(
    options: list[str], tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at_epoch_of(options, 2, tmp_path / "run", monkeypatch)
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"delta": 0.001', '"delta": 0.0015'))
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", "--resume", str(tmp_path / "run")])
    assert exit_.value.code == 2
    assert "other data would let anyone subtract the noise" in capsys.readouterr().err


@pytest.mark.slow
def test_another_seed_is_refused_where_it_would_give_other_noise_under_the_same_name(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at_epoch_of(options, 2, tmp_path / "run", monkeypatch)
    shutil.rmtree(tmp_path / "run" / "private" / "checkpoints")  # as of one that was killed before its first
    (tmp_path / "run" / "private" / "metrics.jsonl").unlink(missing_ok=True)
    stored = tmp_path / "run" / "private" / "run.json"
    before = stored.read_text()
    capsys.readouterr()
    stored.write_text(before.replace('"seed": 7', '"seed": 6'))
    assert "is not that with which the run began" in refused(["train", "--resume", str(tmp_path / "run")], capsys)
    stored.write_text(before)
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_other_versions_of_packages_are_told_of(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        of_before = {**_processes.versions(), "optax": "0.0.1"}
        patch.setattr(_processes, "versions", lambda: of_before)
        patch.setattr(_config, "versions", lambda: of_before)
        interrupt_at_epoch_of(options, 2, tmp_path / "run", monkeypatch)
    capsys.readouterr()
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert "it began with optax 0.0.1, and goes on with optax " in capsys.readouterr().out
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_where_every_checkpoint_is_damaged_the_run_is_refused_and_left_as_it_is(
    options: list[str], tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at_epoch_of(options, 4, tmp_path / "run", monkeypatch)
    for step in ("16", "24"):
        damage(tmp_path / "run" / "private" / "checkpoints" / step)
    before = (tmp_path / "run" / "private" / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", "--resume", str(tmp_path / "run")])
    assert exit_.value.code == 2
    assert "none can be read" in capsys.readouterr().err
    assert (tmp_path / "run" / "private" / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_records_of_epochs_that_were_damaged_come_back_from_the_checkpoint(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch
) -> None:
    interrupt_at_epoch_of(options, 4, tmp_path / "run", monkeypatch)
    metrics = tmp_path / "run" / "private" / "metrics.jsonl"
    metrics.write_text('{"epoch": 1, "step": 8, "train_loss": 9.0}\n')
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert result(tmp_path / "run") == undisturbed
