"""What a run does where the user doesn't say: a recipe for each model.

The private CNN's was chosen on 10,000 of MNIST's training examples, held back as `jaxdp train --holdout 10000` does, never
on the test set: among batch sizes 256 to 4096, learning rates, clip norms 0.05 to 1, schedules and initialisations at ε = 1.
The others are usual values.
"""

from dataclasses import dataclass

from .. import accounting
from .._errors import UsageError
from .._run import DPSGD
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
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run with every number settled. `run` is None for training without privacy."""

    lr: float
    epochs: int
    steps_per_epoch: int
    batch_size: int
    run: DPSGD | None

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.epochs * self.steps_per_epoch


def steps_per_epoch(num_examples: int, batch_size: float) -> int:
    """Steps after which as many examples were expected as there are: round(num_examples / batch_size), at least 1."""
    return max(1, round(num_examples / batch_size))


def settle(options: TrainOptions, num_examples: int) -> Plan:
    """Fill in the recipe's numbers and, with --dp, the noise multiplier.

    Raises:
        UsageError: for a batch larger than the data, a delta not below 1 / num_examples, a budget that can't be met.
    """
    recipe = RECIPES[options.model, options.dp]
    batch_size = options.batch_size or min(recipe.batch_size, num_examples)
    if batch_size > num_examples:
        raise UsageError(
            f"--batch-size={batch_size} exceeds the {num_examples} training examples: give at most {num_examples}"
        )
    epochs = options.epochs or recipe.epochs
    per_epoch = steps_per_epoch(num_examples, batch_size)
    lr = options.lr or (recipe.sgd_lr if options.optimizer == "sgd" else recipe.adam_lr)
    run = _private_run(options, recipe, num_examples, batch_size, epochs * per_epoch) if options.dp else None
    return Plan(lr=lr, epochs=epochs, steps_per_epoch=per_epoch, batch_size=batch_size, run=run)


def _private_run(options: TrainOptions, recipe: Recipe, num_examples: int, batch_size: int, steps: int) -> DPSGD:
    from .. import _checks

    _checks.delta(options.delta, num_examples)
    noise_multiplier = options.noise_multiplier
    if noise_multiplier is None:
        noise_multiplier = accounting.noise_multiplier(
            epsilon=options.target_epsilon or DEFAULT_TARGET_EPSILON,
            delta=options.delta,
            sample_rate=batch_size / num_examples,
            steps=steps,
        )
    return DPSGD(
        num_examples=num_examples,
        expected_batch_size=batch_size,
        steps=steps,
        clip_norm=options.clip_norm or recipe.clip_norm,
        noise_multiplier=noise_multiplier,
        microbatch_size=options.microbatch_size,
    )
