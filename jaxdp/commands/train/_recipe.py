"""A recipe for each model: the numbers of a run where the user gives none.

The private CNN's was chosen on 10,000 of MNIST's training examples, held back as `jaxdp train --holdout 10000` does, never
on the test set: among batch sizes 256 to 4096, learning rates, clip norms 0.05 to 1, schedules and initialisations at ε = 1.
The others are usual values.
"""

import math
from dataclasses import dataclass, replace

from ... import _checks, accounting
from ..._errors import UsageError
from ...dpsgd._run import DPSGD
from ...sampling import Poisson, cuts, kind_of
from .._sampling import adjacency_of
from ._options import TrainOptions

DEFAULT_TARGET_EPSILON = 1.0


@dataclass(frozen=True)
class Recipe:
    """Learning rates for sgd and adam, epochs, batch size and clip norm."""

    sgd_lr: float
    adam_lr: float
    epochs: int
    batch_size: int
    clip_norm: float = float("inf")


RECIPES = {
    ("cnn", True): Recipe(sgd_lr=1.0, adam_lr=0.005, epochs=12, batch_size=1024, clip_norm=1.0),
    ("mlp", True): Recipe(sgd_lr=1.0, adam_lr=0.005, epochs=12, batch_size=1024, clip_norm=1.0),
    ("cnn", False): Recipe(sgd_lr=0.3, adam_lr=0.001, epochs=5, batch_size=128),
    ("mlp", False): Recipe(sgd_lr=0.3, adam_lr=0.001, epochs=10, batch_size=128),
    ("dense", True): Recipe(sgd_lr=0.5, adam_lr=0.001, epochs=12, batch_size=1024, clip_norm=1.0),
    ("dense", False): Recipe(sgd_lr=0.05, adam_lr=0.001, epochs=12, batch_size=128),
}
_OF_OTHERS = {  # of models that have none of their own, by privacy
    True: Recipe(sgd_lr=0.5, adam_lr=0.001, epochs=12, batch_size=1024, clip_norm=1.0),
    False: Recipe(sgd_lr=0.1, adam_lr=0.001, epochs=10, batch_size=128),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run with every number known: of the steps `asked` for, as many as the budget allows.

    `run`, and the `accountant` that shows its epsilon, are None without privacy.
    """

    lr: float
    epochs: int
    steps_per_epoch: int
    batch_size: int
    steps: int
    asked: int
    run: DPSGD | None
    accountant: str | None


def resolve_plan(options: TrainOptions, num_examples: int, spent_before: accounting.Ledger) -> Plan:
    """Fill in the recipe's numbers and, with --dp, the noise multiplier or the steps that the budget allows.

    Raises:
        UsageError: for a batch larger than the data, a delta not below 1 / num_examples, a budget that can't be met, and for a
            warm-up or a patience as long as the run.
    """
    recipe = RECIPES.get((options.architecture, options.dp), _OF_OTHERS[options.dp])
    batch_size = options.batch_size or min(recipe.batch_size, num_examples)
    if batch_size > num_examples:
        raise UsageError(
            f"--batch-size={batch_size} exceeds the {num_examples} training examples: give at most {num_examples}"
        )
    epochs = options.epochs or recipe.epochs
    sampling = kind_of(options.sampling) if options.dp else Poisson
    per_epoch = sampling.steps_per_epoch(num_examples, batch_size)
    steps, run, accountant = epochs * per_epoch, None, None
    if options.dp:
        _checks.delta(options.delta, num_examples)
        run = _described(options, recipe, num_examples, batch_size, steps)
        if spent_before.entries or not run.accountants:  # refuses what can't be added up, before anything is trained
            spent_before.extend(run.ledger(1)).total(delta=options.delta)
        accountant = options.accountant or run.accountants[0]
        run = _within_budget(run, options, accountant, spent_before)
        steps = run.steps
    made = math.ceil(steps / per_epoch)
    if options.warmup >= steps:
        raise UsageError(
            f"--warmup={options.warmup} is not shorter than the run's {steps} steps, so that the learning rate would never reach "
            "--lr: warm up for fewer steps, or train for more --epochs"
        )
    if options.patience is not None and options.patience >= made - 1:
        raise UsageError(
            f"--patience={options.patience} has no effect on a run of {made} epochs, which can't end sooner for it: give less, "
            "or more --epochs"
        )
    return Plan(
        lr=options.lr or (recipe.sgd_lr if options.optimizer == "sgd" else recipe.adam_lr),
        epochs=made,
        steps_per_epoch=per_epoch,
        batch_size=batch_size,
        steps=steps,
        asked=epochs * per_epoch,
        run=run,
        accountant=accountant,
    )


def _described(options: TrainOptions, recipe: Recipe, num_examples: int, batch_size: int, steps: int) -> DPSGD:
    most = None
    if cuts(options.sampling):
        most = options.truncated_batch_size or math.ceil(batch_size + 2 * math.sqrt(batch_size))
    return DPSGD(
        num_examples=num_examples,
        expected_batch_size=batch_size,
        steps=steps,
        clip_norm=options.clip_norm or recipe.clip_norm,
        noise_multiplier=options.noise_multiplier or 1.0,
        sampling=options.sampling,
        truncated_batch_size=most,
        adjacency=adjacency_of(options.adjacency, options.sampling),
        microbatch_size=options.microbatch_size,
    )


def _within_budget(run: DPSGD, options: TrainOptions, accountant: str, spent_before: accounting.Ledger) -> DPSGD:
    target = {"delta": options.delta, "accountant": accountant, "ledger": spent_before}
    if options.target_epsilon is None and options.noise_multiplier is not None:
        run.spent(delta=options.delta, accountant=accountant, steps=1)
        return run
    if options.noise_multiplier is not None:
        return run.within(epsilon=options.target_epsilon or 0.0, **target)
    if options.target_epsilon is None and not run.sampling.amplified:
        # The noise of the usual run, so that what this sampling costs shows in epsilon.
        usual = run.as_poisson()
        by = usual.accountants[0]
        usual = usual.with_noise_for(epsilon=DEFAULT_TARGET_EPSILON, delta=options.delta, accountant=by)
        return replace(run, noise_multiplier=usual.noise_multiplier)
    return run.with_noise_for(epsilon=options.target_epsilon or DEFAULT_TARGET_EPSILON, **target)
