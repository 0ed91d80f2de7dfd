"""`jaxdp tune`: what a search leaves, and that its epsilon is that of all its runs, of their scores and of the choice."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import interrupt_at, interrupt_at_epoch_of, refused, result
from dp_accounting import ComposedDpEvent
from dp_accounting.rdp import RdpAccountant

import jaxdp
from jaxdp import accounting, cli
from jaxdp.accounting._orders import costs_no_more, ruled_out_above
from jaxdp.accounting._reach import NEGLIGIBLE, missing_of
from jaxdp.commands.train import _train
from jaxdp.commands.train._results import published
from jaxdp.commands.tune import TuneOptions, _tune
from jaxdp.commands.tune._price import event_of_run, price
from jaxdp.commands.tune._score import of_classes, of_numbers, of_targets
from jaxdp.runs._folder import RunFolder

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"
SMALL = [
    *("tune", "--model", "mlp", "--data-dir", str(FIXTURES), "--epochs", "2", "--runs", "2"),
    *("--target-epsilon", "3", "--delta", "1e-3", "--seed", "6"),
]
TWO_SIZES = [*SMALL, "--batch-sizes", "64", "128"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting.RandomSearch, "number_of_runs", lambda *_: 2)
        cli.main([*TWO_SIZES, "--output", str(folder)])
    return folder


def curve(event: Any) -> np.ndarray:
    accountant = RdpAccountant()
    accountant.compose(event)
    return np.asarray(accountant.rdp)


@pytest.mark.slow
def test_a_search_leaves_the_best_model_and_states_what_all_of_it_cost(finished: Path, capsys) -> None:
    run = jaxdp.load_run(finished)
    stored = json.loads((finished / "private" / "search.json").read_text())["trials"]
    best = max(stored, key=lambda trial: trial["score"])
    plan = json.loads((finished / "config.json").read_text())["plan"]
    assert (plan["lr"], plan["run"]["clip_norm"], plan["batch_size"]) == (
        best["lr"],
        best["clip_norm"],
        best["batch_size"],
    )
    assert len(stored) > 1
    assert not (finished / "private" / "trials").exists()
    assert run.predict(np.zeros((2, 28, 28, 1), np.uint8)).shape == (2, 10)
    ledger = accounting.Ledger.from_dict(json.loads((finished / "statement.json").read_text())["ledger"])
    spent = ledger.epsilon(delta=1e-3)
    assert run.summary is not None
    assert run.summary["epsilon"]["rdp"] == spent.epsilon <= 3
    assert spent.epsilon > 2.99
    assert run.statement is not None
    assert f"({accounting.rounded_up(spent.epsilon)}, 0.001)-differential privacy" in run.statement
    alone = jaxdp.DPSGD.from_dict(plan["run"]).epsilon(delta=1e-3)
    assert f"({accounting.rounded_up(alone)}" not in run.statement  # which isn't true of a model that was chosen
    capsys.readouterr()
    cli.main(["compare", str(finished), "--output", str(finished.parent / "c.png"), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["epsilon"] == spent.epsilon


@pytest.mark.slow
def test_nothing_of_the_runs_that_were_not_kept_is_published(finished: Path) -> None:
    stored = json.loads((finished / "private" / "search.json").read_text())["trials"]
    best = max(stored, key=lambda trial: trial["score"])
    for path in finished.rglob("*"):
        if path.is_file() and "private" not in path.relative_to(finished).parts:
            for trial in stored:
                for name in ("score", *(("lr", "clip_norm") if trial != best else ())):
                    assert repr(trial[name]).encode() not in path.read_bytes(), (path, name)
    assert (finished / "private").stat().st_mode & 0o077 == 0
    assert "how many runs" in (finished / "statement.txt").read_text()


@pytest.mark.slow
def test_a_search_that_is_broken_off_goes_on_to_the_same_result(finished: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(accounting.RandomSearch, "number_of_runs", lambda *_: 2)
    interrupt_at_epoch_of(TWO_SIZES, 2, tmp_path / "run", monkeypatch)
    assert (tmp_path / "run" / "private" / "trials" / "1").exists()
    (tmp_path / "run" / "private" / "trials" / "2").mkdir()
    (tmp_path / "run" / "private" / "trials" / "2" / ".config.json.tmp").touch()  # of a kill while it was written
    cli.main(["tune", "--resume", str(tmp_path / "run")])
    assert result(tmp_path / "run") == result(finished)


@pytest.mark.slow
def test_a_search_without_a_seed_is_one_search_wherever_it_goes_on(tmp_path: Path, monkeypatch) -> None:
    """Its nonce names the noise of runs and scores that have not begun yet, too."""
    monkeypatch.setattr(accounting.RandomSearch, "number_of_runs", lambda *_: 2)
    at = SMALL.index("--seed")
    unseeded = [*SMALL[:at], *SMALL[at + 2 :], "--batch-size", "64"]
    interrupt_at_epoch_of(unseeded, 2, tmp_path / "run", monkeypatch)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for folder in ("run", "copy"):
        cli.main(["tune", "--resume", str(tmp_path / folder)])
    assert result(tmp_path / "run") == result(tmp_path / "copy")
    trials = [(tmp_path / folder / "private" / "search.json").read_text() for folder in ("run", "copy")]
    assert trials[0] == trials[1]


@pytest.mark.slow
def test_a_best_run_that_is_gone_before_it_is_kept_is_asked_for(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(accounting.RandomSearch, "number_of_runs", lambda *_: 1)
    command = [*SMALL, "--batch-size", "64", "--output", str(tmp_path / "run")]
    interrupt_at(_tune, "save_model", command, monkeypatch)
    trials = tmp_path / "run" / "private" / "trials"
    trials.rename(tmp_path / "taken")
    capsys.readouterr()
    assert "is gone, the best run of this search: bring it back" in refused(
        ["tune", "--resume", str(tmp_path / "run")], capsys
    )
    shutil.rmtree(trials, ignore_errors=True)
    (tmp_path / "taken").rename(trials)
    cli.main(["tune", "--resume", str(tmp_path / "run")])
    assert (tmp_path / "run" / "statement.json").exists()


@pytest.mark.slow
def test_a_search_is_not_gone_on_with_where_a_digit_of_its_noise_is_another(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(accounting.RandomSearch, "number_of_runs", lambda *_: 2)
    interrupt_at_epoch_of(TWO_SIZES, 2, tmp_path / "run", monkeypatch)
    shutil.rmtree(tmp_path / "run" / "private" / "trials")
    capsys.readouterr()
    seeds = tmp_path / "run" / "private" / "run.json"
    stored = seeds.read_text()
    seeds.write_text(json.dumps({**json.loads(stored), "seed": 12_345}))
    assert "is not that with which the search began" in refused(["tune", "--resume", str(tmp_path / "run")], capsys)
    seeds.write_text(stored)
    config = tmp_path / "run" / "config.json"
    described = json.loads(config.read_text())
    described["search"]["noise"][0][1] /= 4
    config.write_text(json.dumps(described, indent=2) + "\n")
    assert f"{config} is not as it was written" in refused(["tune", "--resume", str(tmp_path / "run")], capsys)


@pytest.mark.slow
def test_a_search_after_another_keeps_the_budget_of_both(finished: Path, tmp_path: Path) -> None:
    spent = ["--ledger", str(finished / "statement.json"), "--target-epsilon", "5", "--batch-size", "64"]
    cli.main([*SMALL, *spent, "--output", str(tmp_path / "run")])
    stored = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert len(stored["ledger"]["entries"]) == 2
    assert stored["epsilon"]["rdp"] < stored["total_epsilon"] <= 5


@pytest.mark.slow
def test_a_search_that_draws_no_run_says_so_and_is_paid_for(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(accounting.RandomSearch, "number_of_runs", lambda *_: 0)
    cli.main([*SMALL, "--batch-size", "64", "--output", str(tmp_path / "run")])
    assert not (tmp_path / "run" / "model").exists()
    assert json.loads((tmp_path / "run" / "statement.json").read_text())["epsilon"]["rdp"] > 2.9
    assert "no run was drawn" in capsys.readouterr().out
    with pytest.raises(jaxdp.UsageError, match="drew no run"):
        jaxdp.load_run(tmp_path / "run")
    with pytest.raises(SystemExit):
        cli.main(["compare", str(tmp_path), "--output", str(tmp_path / "c.png")])
    assert "holds no finished run with a model" in capsys.readouterr().err


@pytest.mark.slow
def test_a_table_is_searched_and_scored_on_the_records_held_back(tmp_path: Path) -> None:
    cli.main(
        ["lookalike", str(tmp_path / "t"), "--rows", "400", "--features", "8", "--targets", "2", "--test-rows", "9"]
    )
    files = [
        "--features",
        str(tmp_path / "t/train_features.csv"),
        "--targets",
        str(tmp_path / "t/train_targets_scored.csv"),
    ]
    sizes = ["--hidden", "4", "--epochs", "1", "--batch-size", "64", "--delta", "1e-3", "--opt", "adam", "--runs", "1"]
    spent = ["--distribution", "geometric", "--bounds", "-10", "10", "--seed", "3"]
    cli.main(["tune", "--dataset", "csv", *files, *sizes, *spent, "--output", str(tmp_path / "run")])
    run = jaxdp.load_run(tmp_path / "run")
    assert run.summary is not None
    assert "test_accuracy" in run.summary
    assert "test_accuracy" not in json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "the records held back were predicted" in (run.statement or "")
    assert " held back, is treated as public" in (run.statement or "")
    assert "on behalf of the records trained on and of those held back" in (run.statement or "")
    assert "bounds, categories, classes) counts as known" in (run.statement or "")


def test_delta_is_below_one_over_all_records_that_a_search_of_a_table_sees(tmp_path: Path, capsys) -> None:
    """Also over those held back, which are scored."""
    files = []
    for name, modulus in (("features", 7), ("targets", 2)):
        (tmp_path / f"{name}.csv").write_text("id,a\n" + "".join(f"{i},{i % modulus}\n" for i in range(300)))
        files += [f"--{name}", str(tmp_path / f"{name}.csv")]
    table = ["tune", "--dataset", "csv", *files, "--bounds", "0", "7"]
    small = ["--hidden", "--epochs", "1", "--batch-size", "32", "--runs", "1"]
    line = refused([*table, *small, "--delta", "0.0034", "--output", str(tmp_path / "run")], capsys)
    assert "is not below 1/300" in line


def test_a_search_takes_no_runs_of_another_that_was_broken_off(tmp_path: Path) -> None:
    (tmp_path / "private" / "trials" / "1").mkdir(parents=True)
    with pytest.raises(jaxdp.UsageError, match="holds private/trials of another run"):
        RunFolder.create(tmp_path)


@pytest.mark.parametrize("left", ["checkpoints", "best", "public-coordinates.npy", "private-coordinates.npy"])
def test_nothing_of_another_run_is_taken_for_a_new_ones(left: str, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / left).touch()
    with pytest.raises(jaxdp.UsageError, match=f"holds private/{left} of another run"):
        RunFolder.create(tmp_path)


@pytest.mark.slow
def test_what_no_noise_of_a_run_can_mend_is_named() -> None:
    options = TuneOptions(batch_sizes=(100,), epochs=20, target_epsilon=3.0, score_noise=0.5)
    with pytest.raises(jaxdp.UsageError, match=r"--score-noise=0\.5: such scores alone cost more than the budget"):
        price(options, 10_000, accounting.Ledger())
    event = accounting.truncated_poisson_event(
        noise_multiplier=5.0, num_examples=10_000, sample_rate=0.01, truncated_batch_size=200, steps=3
    )
    options = TuneOptions(batch_sizes=(100,), epochs=2, ledger=Path("spent.json"))
    with pytest.raises(jaxdp.UsageError, match=r"--ledger=spent\.json has uses .* \(a truncated run\)"):
        price(options, 10_000, accounting.Ledger().add(event, "a truncated run"))


@pytest.mark.slow
def test_no_batch_size_costs_more_than_the_search_is_charged_for() -> None:
    epsilon, examples, sizes = 3.0, 455, (32, 128)
    options = TuneOptions(batch_sizes=sizes, target_epsilon=epsilon, epochs=10, delta=1e-4)
    found = price(options, examples, accounting.Ledger())
    charged = curve(found.event.event)
    score = accounting.gaussian_event(noise_multiplier=found.score_noise)
    for size in sizes:
        steps = 10 * round(examples / size)
        run = accounting.poisson_event(noise_multiplier=found.noise[size], sample_rate=size / examples, steps=steps)
        assert (curve(ComposedDpEvent([run, score])) <= charged).all()
        less = accounting.poisson_event(
            noise_multiplier=0.97 * found.noise[size], sample_rate=size / examples, steps=steps
        )
        assert not (curve(ComposedDpEvent([less, score])) <= charged).all()
    assert 0.99 * epsilon < accounting.event_epsilon(found.event, delta=1e-4).epsilon <= epsilon


@pytest.mark.slow
def test_other_data_are_not_read_while_a_search_goes_on(finished: Path, tmp_path: Path, monkeypatch) -> None:
    reads = []
    monkeypatch.setattr(accounting.RandomSearch, "number_of_runs", lambda *_: 2)
    posed = _tune.problem_for
    monkeypatch.setattr(_train, "problem_for", lambda *_: reads.append(1))
    monkeypatch.setattr(_tune, "problem_for", posed)
    cli.main([*TWO_SIZES, "--output", str(tmp_path / "run")])
    assert not reads
    assert result(tmp_path / "run") == result(finished)


@pytest.mark.slow
def test_a_search_of_which_only_its_statement_is_left_asks_for_no_data(
    finished: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(accounting.RandomSearch, "number_of_runs", lambda *_: 2)
    own = shutil.copytree(FIXTURES, tmp_path / "data")
    arguments = [str(own) if each == str(FIXTURES) else each for each in TWO_SIZES]
    interrupt_at(_tune._Ending, "run", [*arguments, "--output", str(tmp_path / "run")], monkeypatch)
    shutil.rmtree(own)
    cli.main(["tune", "--resume", str(tmp_path / "run")])
    assert result(tmp_path / "run") == result(finished)
    assert not (tmp_path / "run" / "private" / "trials").exists()


def test_orders_are_ruled_out_above_one_and_free_up_to_it() -> None:
    orders = np.asarray(RdpAccountant().orders)
    for order in (2.5, 20.0, 63.0, 200.0, 256.0):
        cost, kept = curve(ruled_out_above(order)), orders <= max(order, 11)
        assert cost[kept].max() < 1e-12
        assert cost[~kept].min() > 1e3


def test_an_event_that_costs_more_at_any_order_is_not_covered() -> None:
    gaussian = lambda sigma: accounting.gaussian_event(noise_multiplier=sigma)
    assert costs_no_more(gaussian(2.0), curve(gaussian(2.0)))
    assert not costs_no_more(gaussian(1.99), curve(gaussian(2.0)))


def test_one_record_more_moves_a_score_by_one_at_most() -> None:
    rng = np.random.default_rng(0)
    of_each = (
        of_classes({}, rng.dirichlet(np.full(5, 0.1), 1000), rng.integers(0, 5, 1000)),
        of_targets({}, rng.random((1000, 3)), rng.integers(0, 2, (1000, 3))),
        of_numbers({"lower": -2.0, "upper": 6.0}, rng.uniform(-2, 6, (1000, 2)), rng.normal(0, 9, (1000, 2))),
    )
    for each in of_each:
        assert each.shape == (1000,)
        assert (each >= 0).all()
        assert (each <= 1).all()
    assert of_classes({}, np.eye(5), np.arange(5)).tolist() == [1.0] * 5
    assert of_classes({}, np.eye(5), (np.arange(5) + 1) % 5).tolist() == [0.0] * 5


def test_a_summary_of_people_held_back_is_not_published() -> None:
    assert "test_accuracy" not in published({"test_accuracy": 0.5}, with_test=False)


def test_a_ledger_of_other_neighbours_is_refused_before_the_first_run(tmp_path: Path, capsys) -> None:
    spent = accounting.Ledger(adjacency="replace_special").add(accounting.gaussian_event(noise_multiplier=9.0), "a sum")
    (tmp_path / "ledger.json").write_text(json.dumps(spent.to_dict()))
    line = refused([*SMALL, "--ledger", str(tmp_path / "ledger.json"), "--output", str(tmp_path / "run")], capsys)
    assert "replace_special" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_end_of_the_noise_takes_no_more_of_delta_than_the_search_says() -> None:
    """At a small delta it decides: runs of few examples are many steps of little noise."""
    options = TuneOptions(batch_sizes=(17, 24_000), target_epsilon=1.0, epochs=2, delta=2e-11, model="cnn")
    found = price(options, 60_000, accounting.Ledger())
    charged = missing_of(found.event, 2e-11, "add_or_remove_one")
    for size in (17, 24_000):
        run = options.search.event(event_of_run(options, found, size))
        assert missing_of(run, 2e-11, "add_or_remove_one") <= max(charged, NEGLIGIBLE * 2e-11)


def test_the_budget_is_what_is_typed_or_the_recipes_or_one() -> None:
    assert TuneOptions(target_epsilon=2.0, recipe="scattering-3").budget == 2
    assert TuneOptions(recipe="scattering-3").budget == 3
    assert TuneOptions().budget == 1


def test_the_usual_batch_sizes_leave_the_accountant_something_to_tell() -> None:
    for examples in (100, 400, 512, 1000, 1023, 3000, 60_000):
        sizes = TuneOptions().sizes(examples)
        assert len(sizes) == 3
        assert max(sizes) <= 0.4 * examples + 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--no-dp"], "--no-dp has no effect on jaxdp tune"),
        (["--runs", "0.5"], "--runs=0.5 must be at least 1"),
        (["--runs", "nan"], "--runs is NaN"),
        (["--runs", "1e30"], "--runs=1e+30 must be at least 1, and a million at most"),
        (["--score-noise", "2e6"], "--score-noise=2e+06 must lie between 0.001 and 1e6"),
        (["--lrs", "2", "1"], "--lrs 2 1: give the least first"),
        (["--clip-norms", "0", "1"], "--clip-norms=0.0"),
        (["--batch-sizes", "64", "64"], "--batch-sizes 64 64 must be different"),
        (["--batch-sizes", "600"], "--batch-sizes has 600, and there are 512"),
        (["--score-noise", "-1"], "--score-noise=-1"),
        (["--adjacency", "replace_one"], "--adjacency=replace_one has no effect"),
        (["--learning-rate", "1"], "--lr here"),
        (["--lrs", "1", "1e9"], "--lrs=1e+09 is above 1e+06"),
        (["--clip-norms", "1e-37", "1"], "clip_norm"),
        (["--delta", "0.01"], "delta=0.01"),
        pytest.param(
            ["--epochs", "2", "--batch-sizes", "16", "128", "--warmup", "10"],
            "--warmup=10 is not shorter",
            marks=pytest.mark.slow,
        ),
        (["--schedule", "plateau", "--holdout", "99"], "--schedule=plateau has no effect on jaxdp tune"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(arguments: list[str], why: str, tmp_path: Path, capsys) -> None:
    base = ["tune", "--data-dir", str(FIXTURES), "--output", str(tmp_path / "run"), *arguments]
    assert why in refused(base, capsys)
    assert not (tmp_path / "run").exists()
