"""An option without effect is an error on the command line, whichever the command: all of every table are tried."""

from pathlib import Path
from typing import Any

import pytest
from command import refused

import jaxdp
from jaxdp import UsageError, cli
from jaxdp.accounting import Ledger
from jaxdp.commands._accounting import EpsilonOptions, NoiseOptions, StepsOptions
from jaxdp.commands._effects import check_effects
from jaxdp.commands._sampling import cut_nearly_always
from jaxdp.commands.pate import AnalyzeOptions, LabelOptions, PateOptions
from jaxdp.commands.train import TrainOptions
from jaxdp.commands.train._plan import resolve_plan
from jaxdp.commands.tune import TuneOptions

TABLE = ["train", "--dataset", "csv", "--features", "f.csv", "--targets", "t.csv", "--bounds", "0", "1"]
LABEL = ["pate", "label", "p.csv", "--num-classes", "2", "--records", "9", "--output", "x"]
ANALYZE = ["pate", "analyze", "p.csv", "--num-classes", "2"]
EPSILON = ["epsilon", "--noise-multiplier", "1"]
OF_VOTES = {"threshold": "1", "sigma-threshold": "1", "sigma-max": "1", "gamma": "1", "student-confidence": "0.9"}
NOT_OF = {
    "laplace": ("threshold", "sigma-threshold", "sigma-max", "student-confidence"),
    "gnmax": ("threshold", "sigma-threshold", "gamma", "student-confidence"),
    "confident": ("gamma", "student-confidence"),
    "interactive": ("gamma",),
}
SEARCHED = {"lrs": "1 2", "clip-norms": "1 2", "batch-sizes": "8 9"}
WITHOUT_EFFECT: list[tuple[type, list[str], dict[str, str]]] = [
    (
        TrainOptions,
        ["train", "--no-dp"],
        {
            "clip-norm": "1",
            "noise-multiplier": "1",
            "target-epsilon": "1",
            "delta": "1e-5",  # typed, though it is the default
            "sampling": "poisson",
            "truncated-batch-size": "9",
            "adjacency": "replace_one",
            "accountant": "pld",
            "ledger": "x.json",
            "microbatch-size": "8",
            "devices": "2",
            "distributed": "",
            "coordinator": "localhost:1234",
            "num-processes": "2",
            "process-id": "0",
        },
    ),
    (
        TrainOptions,
        ["train"],
        {
            "features": "f.csv",
            "targets": "t.csv",
            "target-columns": "a",
            "classes": "a,b",
            "target-bounds": "0 9",
            "columns": "c.txt",
            "categories": "a=b,c",
            "bounds": "0 1",
            "bounds-file": "b.csv",
            "bounds-noise": "3",
            "missing": "middle",
            "folds": "3",
            "fold": "1",
            "precision": "bf16",
            "truncated-batch-size": "64",
            "canaries": "noise",
            "plateau-factor": "0.5",
            "plateau-patience": "2",
        },
    ),
    (TrainOptions, TABLE, {"data-dir": "/tmp", "reading": "disk"}),
    (TrainOptions, [*TABLE, "--hidden"], {"activation": "relu"}),
    (TrainOptions, ["train", "--hidden"], {"activation": "relu"}),
    (TrainOptions, ["train"], {"activation": "relu", "augmentations": "4"}),
    (TrainOptions, TABLE, {"augmentations": "4"}),
    (TrainOptions, ["train", "--model", "cnn"], {"hidden": "64", "scales": "3"}),
    (TrainOptions, ["train", "--opt", "adam"], {"momentum": "0.9"}),
    (
        TuneOptions,
        ["tune"],
        {
            "noise-multiplier": "1",
            "accountant": "rdp",
            "sampling": "shuffle",
            "truncated-batch-size": "9",
            "folds": "2",
            "fold": "1",
            "patience": "3",
            "keep": "best",
            "plateau-factor": "0.5",
            "plateau-patience": "2",
            "audit-canaries": "100",
            "canaries": "noise",
            "bounds-noise": "3",
            "distributed": "",
            "coordinator": "localhost:1234",
            "num-processes": "2",
            "process-id": "0",
        },
    ),
    (TuneOptions, ["tune", "--lr", "1", "--clip-norm", "1", "--batch-size", "9"], SEARCHED),
    *(
        (kind, [*command, "--aggregator", aggregator], {name: OF_VOTES[name] for name in names})
        for kind, command in ((PateOptions, ["pate"]), (LabelOptions, LABEL), (AnalyzeOptions, ANALYZE))
        for aggregator, names in NOT_OF.items()
    ),
    (AnalyzeOptions, [*ANALYZE, "--overwrite"], {}),
    (cli.PredictOptions, ["predict", "run", "--overwrite"], {}),
    (EpsilonOptions, [*EPSILON, "--steps", "9"], {"epochs": "15"}),
    (EpsilonOptions, EPSILON, {"truncated-batch-size": "9"}),
    (NoiseOptions, ["noise", "--epsilon", "1", "--steps", "9"], {"epochs": "15", "truncated-batch-size": "9"}),
    (StepsOptions, ["steps", "--epsilon", "1", "--noise-mult", "1"], {"truncated-batch-size": "9"}),
]


@pytest.mark.parametrize(("kind", "command", "options"), WITHOUT_EFFECT)
def test_an_option_without_effect_is_refused_by_name(kind: type, command: list[str], options: dict[str, str]) -> None:
    for name, value in options.items() or (("overwrite", ""),):
        typed = [f"--{name}", *value.split()] if options else []
        with pytest.raises(jaxdp.UsageError, match=f"--{name}=.* ha(s|ve) no effect .*: leave (it|them) out"):
            cli._parse([*command, *typed])


def test_every_option_of_every_table_is_tried() -> None:
    tried: dict[type, set[str]] = {}
    for kind, _, options in WITHOUT_EFFECT:
        tried.setdefault(kind, set()).update(name.replace("-", "_") for name in options or ("overwrite",))
    for kind, names in tried.items():
        of_table: Any = kind
        inherited = TrainOptions.effects if kind is TuneOptions else ()  # which are tried above
        assert names == {name for effect in of_table.effects if effect not in inherited for name in effect.of}


def test_what_has_an_effect_is_taken() -> None:
    cli._parse([*TABLE, "--hidden", "8", "--activation", "relu", "--precision", "bf16", "--momentum", "0.9"])
    cli._parse(["train", "--hidden", "8", "--activation", "relu", "--scales", "1"])
    cli._parse(["train", "--model", "mlp", "--hidden", "8", "--augmentations", "2"])
    cli._parse(["train", "--sampling", "truncated_poisson", "--truncated-batch-size", "300", "--accountant", "pld"])
    cli._parse(["pate", "--aggregator", "laplace", "--gamma", "0.1"])
    cli._parse([*EPSILON, "--steps", "9"])


def test_in_a_program_where_nothing_is_typed_what_differs_from_its_default_counts() -> None:
    check_effects(TrainOptions(dp=False, delta=1e-5))
    with pytest.raises(jaxdp.UsageError, match=r"--delta=0\.001 has no effect with --no-dp"):
        TrainOptions(dp=False, delta=1e-3).check()
    with pytest.raises(jaxdp.UsageError, match=r"--target-epsilon=1\.0 has no effect"):
        TrainOptions(dp=False, target_epsilon=1.0).check()


def test_a_folder_beside_the_one_that_is_resumed_is_refused(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"options": {}}')
    resumed = ["train", "--resume", str(tmp_path), "--output"]
    with pytest.raises(jaxdp.UsageError, match="no effect beside --resume"):
        cli._parse([*resumed, str(tmp_path / "other")])
    assert cli._parse([*resumed, str(tmp_path)]).resume == tmp_path


@pytest.mark.parametrize(("given", "why"), [("sx=f,m", "no such column"), ("sex=f,m sex=m,f", "twice")])
def test_categories_of_a_column_that_is_not_there_are_refused(given: str, why: str, tmp_path, capsys) -> None:
    (tmp_path / "f.csv").write_text("id,sex\n1,f\n")
    table = ["train", "--dataset", "csv", "--features", str(tmp_path / "f.csv"), "--targets", "t.csv"]
    assert why in refused([*table, "--bounds", "0", "1", "--categories", *given.split()], capsys)


def planned(**changes: Any) -> Any:
    """A run of 3 epochs of 8 steps."""
    chosen = {"epochs": 3, "batch_size": 64, "delta": 1e-3, "noise_multiplier": 1.0} | changes
    return resolve_plan(TrainOptions(**chosen), 512, Ledger())


def test_a_warm_up_or_a_patience_as_long_as_the_run_is_refused() -> None:
    assert planned(warmup=23).steps == 24
    with pytest.raises(jaxdp.UsageError, match="--warmup=24 is not shorter than the run's 24 steps"):
        planned(warmup=24)
    assert planned(patience=1, holdout=100).epochs == 3
    with pytest.raises(jaxdp.UsageError, match="--patience=2 has no effect on a run of 3 epochs"):
        planned(patience=2, holdout=100)


@pytest.mark.parametrize(("most", "warned"), [(2, True), (40, True), (64, False), (70, False)])
def test_a_truncated_batch_far_below_the_expected_one_has_a_warning(most: int, warned: bool) -> None:
    described = {"num_examples": 512, "expected_batch_size": 64, "steps": 8, "clip_norm": 1.0, "noise_multiplier": 1.0}
    run = jaxdp.DPSGD(**described, sampling="truncated_poisson", truncated_batch_size=most)
    assert (cut_nearly_always(run) is not None) == warned


@pytest.mark.slow
def test_the_warning_is_shown_with_the_answer_and_before_a_run(
    capsys: pytest.CaptureFixture[str], tfds_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = ["--batch-size", "64", "--delta", "1e-3", "--sampling", "truncated_poisson", "--truncated-batch-size", "2"]
    cli.main([*EPSILON, "--examples", "512", "--steps", "8", *cut, "--json"])
    assert "far below the 64 examples" in capsys.readouterr().err
    sized = ["--data-dir", str(tfds_dir), "--epochs", "1", "--output", str(tmp_path / "run")]
    cli.main(["train", *sized, "--model", "mlp", *cut])
    assert "far below the 64 examples" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("again", [["--ledger", "b.json"], ["--ledger=b.json"]])
def test_a_ledger_beside_another_is_refused_and_not_left_out(
    again: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--ledger is given more than once" in refused(
        ["train", "--ledger", "a.json", "--epochs", "1", *again], capsys
    )


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (TrainOptions, {"features": "t.csv"}, r"features='t.csv' is str.*give Path\('t.csv'\)"),
        (TrainOptions, {"output": "run"}, r"give Path\('run'\)"),
        (TrainOptions, {"hidden": ("a",)}, r"hidden=\('a',\) is tuple.*give tuple\[int, ...\] or None"),
        (TrainOptions, {"bounds": (1,)}, r"give tuple\[float, float\] or None"),
        (TrainOptions, {"activation": "x"}, "give one of 'tanh', 'relu'"),
        (TrainOptions, {"dp": 1}, "dp=1 is int.*give bool"),
        (PateOptions, {"aggregator": ["x"]}, "give one of 'confident'"),
    ],
)
def test_options_made_in_python_are_of_the_types_that_the_command_line_gives(
    kind: Any, options: dict[str, Any], said: str, unchecked: None
) -> None:
    with pytest.raises(UsageError, match=said):
        kind(**options).check()
