"""A run as plain JSON, and back: everything comes back, and nothing is made that the reader doesn't know."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import jaxdp
from jaxdp.clipping import Normalised, PerGroup, Quantile
from jaxdp.noise import Gaussian
from jaxdp.sampling import Shuffled, TruncatedPoisson


def a_run(**changes: Any) -> jaxdp.DPSGD:
    usual = {"num_examples": 60, "expected_batch_size": 12, "steps": 30, "clip_norm": 1.0, "noise_multiplier": 1.1}
    return jaxdp.DPSGD(**{**usual, **changes})


def read_back(run: jaxdp.DPSGD, known: Any = ()) -> jaxdp.DPSGD:
    return jaxdp.DPSGD.from_dict(json.loads(json.dumps(run.to_dict(), allow_nan=False)), known)


def test_a_run_of_short_names_is_described_as_folders_always_did() -> None:
    """Keys follow from this description by a seed: another one would draw other noise."""
    described = {
        "num_examples": 60,
        "expected_batch_size": 12,
        "steps": 30,
        "clip_norm": 1.0,
        "noise_multiplier": 1.1,
        "sampling": "poisson",
        "adjacency": "add_or_remove_one",
        "truncated_batch_size": None,
        "unit": "example",
        "records_per_user": None,
        "microbatch_size": None,
    }
    assert list(a_run().to_dict().items()) == list(described.items())
    cut = {"sampling": "truncated_poisson", "truncated_batch_size": 20}
    assert a_run(sampling=TruncatedPoisson(20)).to_dict() == a_run(**cut).to_dict() == described | cut
    shuffled = {"sampling": "shuffle", "adjacency": "replace_special"}
    assert a_run(**shuffled).to_dict() == described | shuffled


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"expected_batch_size": 7.5, "microbatch_size": 4},
        {"unit": "user", "records_per_user": 3, "adjacency": "replace_one"},
        {"sampling": TruncatedPoisson(20), "noise": Gaussian()},
        {"sampling": Shuffled(), "adjacency": "replace_one"},
        {"rule": Normalised(stability=0.5)},
        {"rule": Quantile(count_noise=9.0)},
        {"noise_multiplier": 0.0, "clip_norm": math.inf},
        {"num_examples": np.int64(60), "noise_multiplier": np.float32(1.5)},
    ],
)
def test_a_description_in_json_brings_back_the_run(changes: dict[str, Any]) -> None:
    run = a_run(**changes)
    assert read_back(run) == run
    assert read_back(run).microbatch_size == run.microbatch_size
    assert read_back(run).to_dict() == run.to_dict()


def test_groups_come_back_with_their_labels_as_they_were() -> None:
    labels = {"type": ("left", ["right"]), "other": {"a": "left"}}
    rule = read_back(a_run(rule=PerGroup(labels=labels, weights={"left": 2.0, "right": 1.0}))).rule
    assert isinstance(rule, PerGroup)
    assert rule.labels == labels
    assert rule.weights == {"left": 2.0, "right": 1.0}


def test_short_names_and_values_make_the_same_run() -> None:
    assert a_run(sampling="poisson") == a_run(sampling=jaxdp.sampling.Poisson()) == a_run()
    cut = a_run(sampling="truncated_poisson", truncated_batch_size=20)
    assert cut == a_run(sampling=TruncatedPoisson(20)) == a_run(sampling=TruncatedPoisson(20), truncated_batch_size=20)
    assert hash(cut) == hash(a_run(sampling=TruncatedPoisson(20)))
    assert (cut.sampling.name, cut.truncated_batch_size) == ("truncated_poisson", 20)
    assert a_run(sampling="shuffle", adjacency="replace_one").sampling == Shuffled()
    with pytest.raises(jaxdp.UsageError, match="sampling='truncated_poisson' with truncated_batch_size=21"):
        a_run(sampling=TruncatedPoisson(20), truncated_batch_size=21)


@dataclass(frozen=True)
class Flat(Gaussian):
    """Of the name of one of jaxdp's own."""


@pytest.mark.usefixtures("unchecked")
def test_what_can_not_be_written_or_is_not_known_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match=r"rule\.labels=<function.* can't be written as JSON"):
        a_run(rule=PerGroup(labels=lambda params: params)).to_dict()
    good = a_run().to_dict()
    for wrong, message in (
        ({"rule": {"type": "os.system", "command": "ls"}}, "rule is of type 'os.system', which is not known here"),
        ({"rule": {"type": "Normalised", "stabilty": 1.0}}, "rule is no Normalised as it is written.*stabilty"),
        ({"rule": {"type": "Gaussian"}}, "is not a clip rule"),
        ({"noise": {"type": "Flat"}}, "is no noise"),
        ({"sampling": {"type": ["Poisson"]}}, "sampling is"),
        ({"sampling": "alphabetical"}, "sampling='alphabetical' is not known"),
        ({"steps": "many"}, "steps='many' is not a plain number"),
        ({"step": 3}, "description is of no run.*step"),
    ):
        with pytest.raises(jaxdp.UsageError, match=message):
            jaxdp.DPSGD.from_dict({**good, **wrong})
    for wrong in (None, [], "run", {}):
        with pytest.raises(jaxdp.UsageError, match="give what DPSGD.to_dict gave"):
            jaxdp.DPSGD.from_dict(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxdp.UsageError, match="another class of the name 'Flat': rename yours"):
        jaxdp.DPSGD.from_dict(good, known=(Flat,))
    with pytest.raises(jaxdp.UsageError, match="has the name of one of jaxdp's own: rename yours"):
        a_run(noise=Flat()).to_dict()
    with pytest.raises(jaxdp.UsageError, match="which is no dataclass"):
        jaxdp.DPSGD.from_dict(good, known=(dict,))


def test_how_many_examples_are_held_at_once_is_no_part_of_what_a_run_is() -> None:
    assert a_run(microbatch_size=4) == a_run(microbatch_size=5) == a_run()
    assert hash(a_run(microbatch_size=4)) == hash(a_run())
