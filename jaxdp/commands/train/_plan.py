"""A run with every number known: those that are typed, the recipe's, and those that the budget asks for."""

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from ... import _checks, accounting
from ..._errors import UsageError
from ...dpsgd._run import DPSGD
from ...sampling import Poisson, cuts, kind_of
from .._sampling import adjacency_of
from ._options import TrainOptions

DEFAULT_TARGET_EPSILON = 1.0
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run with every number known: of the steps `asked` for, as many as the budget allows.

    `run`, and the `accountant` that shows its epsilon, are None without privacy. `budget` is the epsilon that the noise was
    chosen for, by that accountant, if it was.
    """

    optimizer: str
    lr: float
    momentum: float
    schedule: str
    warmup: int
    ema: float
    augmentations: int
    epochs: int
    steps_per_epoch: int
    batch_size: int
    steps: int
    asked: int
    run: DPSGD | None
    accountant: str | None
    budget: float | None


def resolve_plan(options: TrainOptions, num_examples: int, spent_before: accounting.Ledger) -> Plan:
    """Fill in the recipe's numbers and, with --dp, the noise multiplier or the steps that the budget allows.

    Raises:
        UsageError: for a batch larger than the data, a delta not below 1 / num_examples, a budget that can't be met, and for a
            warm-up or a patience as long as the run.
    """
    if options.batch_size is not None and options.batch_size > num_examples:
        raise UsageError(
            f"--batch-size={options.batch_size} exceeds the {num_examples} training examples: give at most {num_examples}"
        )
    options = _filled(options)
    batch_size, epochs = min(_given(options.batch_size), num_examples), _given(options.epochs)
    sampling = kind_of(options.sampling) if options.dp else Poisson
    per_epoch = sampling.steps_per_epoch(num_examples, batch_size)
    steps, run, accountant = epochs * per_epoch, None, None
    if options.dp:
        _checks.delta(options.delta, num_examples)
        run = _described(options, num_examples, batch_size, steps)
        if spent_before.entries or not run.accountants:  # refuses what can't be added up, before anything is trained
            spent_before.extend(run.ledger(1)).total(delta=options.delta)
        accountant = options.accountant or run.accountants[0]
        run = _within_budget(run, options, accountant, spent_before)
        steps = run.steps
    made = math.ceil(steps / per_epoch)
    warmup = _given(options.warmup)
    if warmup >= steps:
        raise UsageError(
            f"--warmup={warmup} is not shorter than the run's {steps} steps, so that the learning rate would never reach "
            "--lr: warm up for fewer steps, or train for more --epochs"
        )
    if options.patience is not None and options.patience >= made - 1:
        raise UsageError(
            f"--patience={options.patience} has no effect on a run of {made} epochs, which can't end sooner for it: give less, "
            "or more --epochs"
        )
    return Plan(
        optimizer=options.optimizer,
        lr=_given(options.lr),
        momentum=_given(options.momentum) if options.optimizer == "sgd" else 0.0,
        schedule=_given(options.schedule),
        warmup=warmup,
        ema=_given(options.ema),
        augmentations=_given(options.augmentations),
        epochs=made,
        steps_per_epoch=per_epoch,
        batch_size=batch_size,
        steps=steps,
        asked=epochs * per_epoch,
        run=run,
        accountant=accountant,
        budget=None if run is None else _budget(options, run),
    )


def _filled(options: TrainOptions) -> TrainOptions:
    """The options, with the recipe's values where they leave one open; noise or budget, if one of them is given, are as given."""
    own = options.recipe_in_use.options(options.optimizer)
    if options.noise_multiplier is not None or options.target_epsilon is not None:
        own |= {"noise_multiplier": None, "target_epsilon": None}
    return replace(options, **{name: value for name, value in own.items() if getattr(options, name) is None})


def _given(value: Value | None) -> Value:
    """What a recipe fills in."""
    assert value is not None
    return value


def _described(options: TrainOptions, num_examples: int, batch_size: int, steps: int) -> DPSGD:
    most = None
    if cuts(options.sampling):
        most = options.truncated_batch_size or math.ceil(batch_size + 2 * math.sqrt(batch_size))
    return DPSGD(
        num_examples=num_examples,
        expected_batch_size=batch_size,
        steps=steps,
        clip_norm=_given(options.clip_norm),
        noise_multiplier=options.noise_multiplier or 1.0,
        sampling=options.sampling,
        truncated_batch_size=most,
        adjacency=adjacency_of(options.adjacency, options.sampling),
        microbatch_size=options.microbatch_size,
    )


def _budget(options: TrainOptions, run: DPSGD) -> float | None:
    """The epsilon that the noise is to be chosen for; None where it is given."""
    if options.noise_multiplier is not None or (options.target_epsilon is None and not run.sampling.amplified):
        return None
    return options.target_epsilon or DEFAULT_TARGET_EPSILON


def _within_budget(run: DPSGD, options: TrainOptions, accountant: str, spent_before: accounting.Ledger) -> DPSGD:
    target = {"delta": options.delta, "accountant": accountant, "ledger": spent_before}
    if options.target_epsilon is None and options.noise_multiplier is not None:
        run.spent(delta=options.delta, accountant=accountant, steps=1)
        return run
    if options.noise_multiplier is not None:
        return run.within(epsilon=options.target_epsilon or 0.0, **target)
    budget = _budget(options, run)
    if budget is None:
        # The noise of the usual run, so that what this sampling costs shows in epsilon.
        usual = run.as_poisson()
        by = usual.accountants[0]
        usual = usual.with_noise_for(epsilon=DEFAULT_TARGET_EPSILON, delta=options.delta, accountant=by)
        return replace(run, noise_multiplier=usual.noise_multiplier)
    return run.with_noise_for(epsilon=budget, **target)
