"""A command's keys: a seed repeats a run and never couples two."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from jaxdp.commands._options import plan_that_matters, that_matter
from jaxdp.commands.pate import PateOptions
from jaxdp.commands.train import TrainOptions
from jaxdp.data import Fingerprints
from jaxdp.runs._key_source import KeySource

DATA = (np.arange(6, dtype=np.uint8), np.zeros(6, np.int32))
NEIGHBOUR = (DATA[0], np.array([1, 0, 0, 0, 0, 0], np.int32))


def source(seed: int | None = 1, described: object = "a run", data: tuple[np.ndarray, ...] = DATA) -> KeySource:
    return KeySource(seed, described, Fingerprints(data))


def words(key: jax.Array) -> tuple[int, ...]:
    return tuple(jax.random.key_data(key).tolist())


def test_a_seed_gives_the_same_keys_to_the_same_run_and_others_to_any_other() -> None:
    assert words(source().key("run")) == words(source().key("run"))
    others = [source(seed=2), source(described="another run"), source(data=NEIGHBOUR)]
    found = {words(each.key(purpose)) for each in (source(), *others) for purpose in ("run", "parameters")}
    assert len(found) == 8
    assert words(source().key("run")) != words(jax.random.key(1))  # nor is it what the seed alone gives
    assert all(
        word > 0 for word in words(source().key("run"))
    )  # the whole of the key, where a seed of 32 bits fills half


def test_of_one_entropy_every_process_has_the_same_keys_and_no_two_purposes_have() -> None:
    first, second = (KeySource(None, "a run", Fingerprints(DATA), b"e" * 32) for _ in range(2))
    another = KeySource(None, "a run", Fingerprints(DATA), b"f" * 32)
    for purpose in ("run", "parameters"):
        assert words(first.key(purpose)) == words(second.key(purpose))
        assert first.nonce(purpose) == second.nonce(purpose)
    keys = [words(each.key(purpose)) for each in (first, another) for purpose in ("run", "parameters")]
    public = [words(each.public_key(purpose)) for each in (first, another) for purpose in ("run", "parameters")]
    assert len({*keys, *public}) == 8
    assert len({each.nonce(purpose) for each in (first, another) for purpose in ("run", "parameters")}) == 4


def test_parts_of_a_run_have_secrets_of_their_own_from_its_entropy_and_with_a_seed_none() -> None:
    first, again = (KeySource(None, "a search", Fingerprints(DATA), b"e" * 32) for _ in range(2))
    parts = [first.secret_for(f"run {i}") for i in range(3)]
    assert parts == [again.secret_for(f"run {i}") for i in range(3)]
    assert len({b"e" * 32, *parts}) == 4
    assert source().secret_for("run 0") is source(seed=None).secret_for("run 0") is None


def test_without_a_seed_every_key_and_nonce_is_new() -> None:
    alike = [source(seed=None) for _ in range(4)]
    assert len({words(each.key("run")) for each in alike}) == 4
    assert len({words(each.public_key("run")) for each in alike}) == 4
    assert len({each.nonce("run") for each in alike}) == 4


def test_what_is_published_of_a_seeded_runs_randomness_is_no_function_of_the_data() -> None:
    ours, neighbours = source(), source(data=NEIGHBOUR)
    assert ours.nonce("run") == neighbours.nonce("run")
    assert words(ours.public_key("queries")) == words(neighbours.public_key("queries"))
    assert len({ours.nonce("run"), source(seed=2).nonce("run"), source(described="b").nonce("run")}) == 3


def test_options_of_place_and_speed_leave_the_keys_alone_and_every_other_one_counts() -> None:
    for options, folds in ((TrainOptions(dataset="csv"), {"folds": 3, "fold": 1}), (PateOptions(), {"queries": 7})):
        place = {"output": Path("x"), "resume": Path("y"), "device": "cpu", "data_dir": Path("z"), "seed": 5}
        assert that_matter(replace(options, **place)) == that_matter(options)
        assert that_matter(replace(options, **folds)) != that_matter(options)
        assert that_matter(replace(options, delta=1e-6)) != that_matter(options)
    assert that_matter(TrainOptions(microbatch_size=5)) == that_matter(TrainOptions())
    together = {"devices": 2, "distributed": True, "coordinator": "host:1", "num_processes": 3, "process_id": 1}
    assert that_matter(TrainOptions(**together)) == that_matter(TrainOptions())
    assert that_matter(TrainOptions(folds=3, fold=1)) != that_matter(TrainOptions(folds=3, fold=2))
    plan = {"steps": 3, "run": {"noise_multiplier": 1.0, "microbatch_size": 5}}
    assert plan_that_matters(plan) == plan_that_matters({**plan, "run": {**plan["run"], "microbatch_size": None}})
    assert plan_that_matters({**plan, "run": None})["run"] is None


def test_a_run_with_other_canaries_has_other_keys_and_the_name_of_its_noise_all_the_same() -> None:
    canaries = np.arange(3)
    with_some, with_others = (Fingerprints(DATA).also(canaries, content) for content in (np.zeros(3), np.ones(3)))
    keys = [KeySource(1, "a run", data) for data in (Fingerprints(DATA), with_some, with_others)]
    assert len({str(jax.random.key_data(each.key("run")).tolist()) for each in keys}) == 3
    assert len({each.nonce("run") for each in keys}) == 1
