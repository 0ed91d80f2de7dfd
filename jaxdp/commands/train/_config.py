"""What is written of a run before it begins, and what of that its draws depend on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._errors import UsageError
from ..._processes import versions
from ...accounting import Ledger
from ...runs._key_source import KeySource
from .. import _options
from .._options import from_dict, plan_that_matters, that_matter
from ._options import TrainOptions
from ._plan import Plan
from ._problem import Problem


def config_of(
    options: TrainOptions, plan: Plan, problem: Problem, spent_before: Ledger, secret: bytes
) -> dict[str, Any]:
    """The part of a run that is published before it begins: neither its seed nor anything that the data tell for nothing."""
    plan_in_json = {**vars(plan), "run": plan.run.to_dict() if plan.run else None}
    config = {**of_problem(options, problem, spent_before), "plan": plan_in_json}
    return {**config, "nonce": keys_of(options, config, problem, secret).nonce("run")}


def of_problem(options: TrainOptions, problem: Problem, spent_before: Ledger) -> dict[str, Any]:
    """The part of that which is there before anything is planned."""
    return {
        "options": _options.to_dict(replace(_options.alone(options), seed=None)),
        "spent_before": spent_before.to_dict(),
        **in_config(problem),
        "versions": versions(),
    }


def in_config(problem: Problem) -> dict[str, Any]:
    """How the data and the model are described there."""
    return {"model": problem.described, "network": problem.model.described}


def keys_of(options: TrainOptions, config: dict[str, Any], problem: Problem, secret: bytes) -> KeySource:
    """Where the keys of a run come from, by its config and, without a seed, its secret, as they are or will be written."""
    description = described(json.loads(json.dumps(config)))
    return KeySource(options.seed, description, problem.fingerprint, secret)


def described(config: dict[str, Any]) -> Any:
    """The description that a run's draws depend on, beside its seed and its data, from its config as it was read."""
    options = that_matter(from_dict(TrainOptions, config["options"]))
    return [options, plan_that_matters(config["plan"]), config["spent_before"], config["model"], config["network"]]


def check_seed(path: Path, keys: KeySource, nonce: str, purpose: str) -> None:
    """Refuse to go on in a folder with another seed than that which gave what it does its nonce: it would get other noise."""
    if keys.seed is not None and keys.nonce(purpose) != nonce:
        raise UsageError(
            f"the seed in {path} is not that with which the {purpose} began, so runs would get other noise: put it back"
        )
