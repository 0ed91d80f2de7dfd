"""The fuzzer of calls: it reaches every public function, begins with what is right, and tells a wrong answer from a refusal."""

import inspect
import math
from collections.abc import Iterator
from types import ModuleType

import fuzz_calls
import jax
import numpy as np
import pytest
from calls_to_fuzz import Call, calls

import jaxdp
from jaxdp import accounting, audit, clipping, data, mechanisms, models, noise, pate, reading, sampling, transforms

pytestmark = pytest.mark.usefixtures("unchecked")

MODULES = (jaxdp, accounting, audit, clipping, data, mechanisms, models, noise, pate, reading, sampling, transforms)
RESULTS = {  # what functions return, which nobody needs to make, and what others in the list are made of
    *(
        "ClippedGrads",
        "ClippedSum",
        "Clipping",
        "Change",
        "GradientCanaries",
        "DrawSums",
        "Summing",
        "Examples",
        "Groups",
        "Explanation",
        "LeafReport",
        "NoFigureError",
        "TooLargeError",
        "QuantileState",
        "ClipRule",
        "Flat",
        "PrivatizeState",
    ),
    *(
        "Draw",
        "GaussianState",
        "Noise",
        "PaddedBatch",
        "Poisson",
        "SampledRun",
        "Sampler",
        "Sampling",
        "Shuffled",
        "Spent",
        "Total",
        "Aggregator",
        "Block",
        "Forecast",
        "Labels",
        "Report",
        "StepMemory",
        "StepMetrics",
        "TrainState",
    ),
    *(
        "Validation",
        "Obstacle",
        "UsageError",
        "Columns",
        "Dataset",
        "Labelled",
        "Column",
        "Fingerprints",
        "OnDisk",
        "Records",
        "Table",
        "Task",
        "Encoding",
        "StudentStep",
        "ClippedGrad",
        "key_from_entropy",
    ),
    *("CNN", "Classifier", "Dense", "MLP", "PatchConv", "ScatteringNet", "StridedCNN", "WeightNormDense"),
}
WITHIN = {  # what other packages call with values that were checked
    *(
        "check_loss",
        "check_rule",
        "clip_and_sum",
        "check_is_rule",
        "example_keys",
        "per_example_values_and_grads",
        "takes_rng",
        "refuse_constant",
        "rows_at",
    ),
    *("check_numbers", "check_suitable", "check_transform", "validate"),
    *(
        "check_noise",
        "cuts",
        "gaussian_event_of",
        "in_order",
        "noise_scale",
        "kind_of",
        "prepared",
        "resolve",
        "short_name",
        "words_of_batch_size",
    ),
}


def public(module: ModuleType) -> Iterator[str]:
    """The names of a package's functions and classes."""
    for name, value in vars(module).items():
        if not name.startswith("_") and callable(value) and not inspect.ismodule(value):
            yield name


def test_every_public_function_has_a_call_that_the_fuzzer_makes_wrong() -> None:
    known = {name.split(".")[0].split("(")[0].split(",")[0].split(" ")[0] for name, _ in calls()}
    for module in MODULES:
        assert set(public(module)) - known - RESULTS - WITHIN == set()


def test_a_wrong_answer_and_a_foreign_error_are_told_from_a_refusal() -> None:
    def answers(value: float) -> float:
        if value == 0:
            raise jaxdp.UsageError("value=0 must be above 0: give a number such as 1.0")
        return 1 / value if value != 2 else math.nan

    call = Call(answers, {"value": 1.0}, lambda out: out > 0)
    assert fuzz_calls.outcome_of(call, {"value": 4.0}) == fuzz_calls.ANSWERED
    assert fuzz_calls.outcome_of(call, {"value": 0.0}) == fuzz_calls.REFUSED
    assert fuzz_calls.outcome_of(call, {"value": 2.0}) == "returned nan"
    assert "TypeError" in fuzz_calls.outcome_of(call, {"value": "1"})


def test_a_seed_repeats_its_calls() -> None:
    given = [fuzz_calls.wrong("delta", 1e-5, np.random.default_rng((0, i))) for i in range(50) for _ in range(2)]
    kinds = [type(value) for value in given]
    assert kinds[::2] == kinds[1::2]
    assert len(set(kinds)) > 10


@pytest.mark.slow
def test_the_calls_that_it_begins_with_are_right() -> None:
    with jax.debug_key_reuse(False):
        wrong = {name: fuzz_calls.outcome_of(call, {}) for name, call in calls()}
    assert {name: outcome for name, outcome in wrong.items() if outcome not in fuzz_calls.RIGHT} == {}


@pytest.mark.slow
def test_a_thousand_wrong_calls_are_answered_or_refused() -> None:
    failures = fuzz_calls.fuzz(1000, seed=0)
    assert not failures, "\n".join(map(str, failures))
