"""The comparison with the peers: what it refuses, what it survives, and where the documents' figures come from."""

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import canonical
import documents
import jax
import numpy as np
import pytest
import record
import throughput
import workloads
from cells import Cell, Process
from exact import difference
from peers.environments import UnavailableError, python_here, python_of


@pytest.mark.parametrize("name", documents.TABLES)
def test_documents_have_the_figures_of_the_committed_results(name: str) -> None:
    text = (documents.ROOT / name).read_text()
    assert documents.replaced(text, name) == text


def test_weights_come_back_from_the_canonical_layout() -> None:
    shapes, rng = jax.eval_shape(lambda: workloads.cnn(2).params), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    arrays = canonical.canonical(params)
    assert arrays["Conv_0/kernel"].shape == (8, 8, 1, 16)
    jax.tree.map(np.testing.assert_array_equal, canonical.like(params, arrays), params)


def test_a_gradient_differs_by_its_relative_distance() -> None:
    expected = {"a": np.array([3.0, 0.0], np.float32), "b": np.array([4.0], np.float32)}
    assert difference(expected, expected) == 0
    assert difference(expected | {"b": np.array([4.5], np.float32)}, expected) == pytest.approx(0.1)
    assert difference({"a": expected["a"]}, expected) == np.inf


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"only": ("jaxdp", "keras")},
            "no library named keras: choose of jaxdp, jax-privacy, optax, opacus, tf-privacy",
        ),
        ({"workloads": ("gpt",)}, "no workload named gpt"),
        ({"only": ()}, "nothing to measure"),
        ({"rounds": 0}, "--rounds is 0"),
        ({"threads": 10_000}, "--threads is 10000: there are"),
        ({"batch_sizes": (30,)}, "multiples of 16"),
    ],
)
def test_bad_options_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(said)):
        throughput.main(replace(throughput.Options(), **changes))


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(UnavailableError, match="no peer named 'keras': choose of tf-privacy"):
        python_of("keras")


def test_a_peer_that_is_not_beside_this_python_is_named() -> None:
    with pytest.raises(UnavailableError, match="opacus isn't installed beside this Python"):
        python_here("opacus")
    assert python_here("optax") == Path(sys.executable)


@pytest.mark.parametrize("given", [["--results", "DIR"], ["--results=DIR"]])
def test_a_record_names_no_folder_of_the_machine(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["clipping.py", "--pairs", "3", *given, "--sweep"])
    folder = record.write(tmp_path, "figures", {})
    assert json.loads((folder / "figures.json").read_text())["command"][2:] == ["--pairs", "3", "--sweep"]


def test_results_of_another_machine_are_not_overwritten(tmp_path: Path) -> None:
    device = record.find_device("cpu")
    assert device is not None
    path = record.write(tmp_path, "throughput", {}, device) / "throughput.json"
    assert record.of_another_machine(path, device) is None
    path.write_text(json.dumps({"processor": "another"}))
    with pytest.raises(SystemExit, match=r"is of another machine \(another"):
        throughput.main(throughput.Options(results=tmp_path))


def test_a_part_is_written_beside_what_was_measured_of_the_whole(tmp_path: Path) -> None:
    assert record.name_for(tmp_path, "times", is_part=True) == "times"
    record.write(tmp_path, "times", {"is_part": True})
    assert record.name_for(tmp_path, "times", is_part=True) == "times"
    record.write(tmp_path, "times", {})
    assert record.name_for(tmp_path, "times", is_part=True) == "times-part"
    assert record.name_for(tmp_path, "times", is_part=False) == "times"


def test_a_commit_says_whether_code_was_changed_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = lambda *words: (
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    )
    scripts, package = tmp_path / "benchmarks", tmp_path / "jaxdp"
    for folder in (scripts, package):
        folder.mkdir()
        (folder / "one.py").write_text("1\n")
    git("init", "--quiet")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "one")
    whole = git("rev-parse", "HEAD").strip()
    monkeypatch.setattr(record, "__file__", str(scripts / "record.py"))
    (scripts / "results.json").write_text("{}")
    assert record.commit() == whole
    for folder in (scripts, package):
        (folder / "one.py").write_text("2\n")
        assert record.commit() == f"{whole}+"
        (folder / "one.py").write_text("1\n")
    assert record.short(f"{whole}+") == f"{whole[:9]}+"


def test_what_a_run_of_the_same_options_left_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = record.find_device("cpu")
    assert device is not None
    options = throughput.Options(results=tmp_path, resume=True)
    typed = lambda *words: monkeypatch.setattr(sys, "argv", ["throughput.py", "--rounds", *words])

    def left(finished: bool) -> None:
        content = {"cells": [asdict(Cell("cnn", 256, "jaxdp", "auto"))], "minutes": 2.0, "finished": finished}
        record.write(tmp_path, "throughput", content, device)

    typed("2")
    with pytest.raises(SystemExit, match=r"--resume: there is no .*throughput\.json"):
        throughput._left(options, device)
    left(finished=False)
    typed("2", "--resume")
    (cell,), seconds = throughput._left(options, device)
    assert (cell.workload, seconds) == ("cnn", 120)
    typed("3", "--resume")
    with pytest.raises(SystemExit, match="has another command"):
        throughput._left(options, device)
    left(finished=True)
    with pytest.raises(SystemExit, match="is of a run that is finished"):
        throughput._left(options, device)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "memory", "seconds", "problem"),
    [("vmap", 2**30, 60.0, "out of memory"), ("auto", None, 0.1, "too slow"), ("auto", None, 60.0, "")],
)
def test_a_cell_that_fails_says_why(
    tmp_path: Path, mode: str, memory: int | None, seconds: float, problem: str
) -> None:
    options = throughput.Options(memory=memory / 2**30 if memory else 0.0, limit_seconds=seconds)
    comparison = throughput.Comparison(options, {"jaxdp": Path(sys.executable)}, tmp_path, lambda what: None)
    comparison._prepare("mlp", 1024)
    process = comparison._start(Cell("mlp", 1024, "jaxdp", mode))
    assert isinstance(process, Process)
    assert process.first_answer() == (not problem)
    process.close()
    assert process.cell.problem == problem


@pytest.mark.slow
def test_processes_that_start_together_are_compared_as_others_are(tmp_path: Path) -> None:
    options = throughput.Options(only=("jaxdp",), together=True)
    comparison = throughput.Comparison(options, {"jaxdp": Path(sys.executable)}, tmp_path, lambda what: None)
    private, plain = comparison.measure("tutorial-mlp", 16, {"jaxdp": ("auto", "plain")})
    assert private.difference < private.tolerance
    assert private.median("step") > 0
    assert plain.median("step") > 0


@pytest.mark.slow
def test_one_for_which_the_others_left_no_memory_is_tried_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = throughput.Options(only=("jaxdp",), together=True)
    comparison = throughput.Comparison(options, {"jaxdp": Path(sys.executable)}, tmp_path, lambda what: None)
    start, memory = comparison._start, [2**28]  # of the first process alone, which can't even begin with it
    monkeypatch.setattr(comparison, "_start", lambda cell, *given, **how: start(cell, memory.pop() if memory else None))
    plain, private = comparison.measure("tutorial-mlp", 16, {"jaxdp": ("auto", "plain")})
    assert (plain.mode, private.mode) == ("plain", "auto")
    assert private.problem == ""
    assert private.median("step") > 0
