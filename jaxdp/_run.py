"""The run: one frozen description from which sampler, gradient function, noise, step and accounting are all built.

Because each part reads its numbers from here, they can't disagree, and the epsilon is that of what is executed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import optax
from jaxtyping import Array, Key

from . import _checks, accounting
from ._errors import UsageError
from ._step import PrivateStep
from .clipping import ClippedGrad, ClipRule, Flat, Quantile, check_rule, clipped_grad
from .sampling import PoissonSampler
from .transforms import privatize

if TYPE_CHECKING:
    from dp_accounting import DpEvent

SAMPLINGS = ("poisson",)
ADJACENCIES = ("add_or_remove_one",)
_FLAT = Flat()


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    r"""A differentially private run of stochastic gradient descent, with any optax optimizer behind the noise.

    \[ \theta_{t+1} = \mathrm{optimizer}\Bigl(\theta_t,\; \frac{1}{B}\bigl(\sum_{i \in \mathrm{Poisson}(B/n)}
       \mathrm{clip}_C(\nabla \ell(\theta_t, x_i)) + \sigma C\, \mathcal N(0, I)\bigr)\Bigr) \]

    Args:
        num_examples: n, the number of examples in the training data; taken as public.
        expected_batch_size: B, how many examples a batch holds on average; the sampling rate is B / n.
        steps: how many steps the run makes.
        clip_norm: C, the L2 norm to which each example's gradient is clipped; under a `Quantile` rule, that of the first step.
        noise_multiplier: σ, the noise's standard deviation in units of C. 0 trains without privacy and has no epsilon. Under a
            `Quantile` rule that of sum and count together: the sum gets as much more as the count's look at the data costs.
        rule: how a norm becomes a factor: `jaxdp.clipping.Flat()`, `PerGroup`, `Normalised` or `Quantile`.
        sampling: "poisson".
        adjacency: "add_or_remove_one".
        microbatch_size: how many examples to process at once; by default a size that suits the device. Changes memory and
            speed only.

    Raises:
        UsageError: for values out of range, naming the field, the value and the fix.

    Example:
        >>> run = DPSGD(num_examples=60_000, expected_batch_size=256, steps=3600, clip_norm=1.0, noise_multiplier=1.1)
        >>> print(f"{run.epsilon(delta=1e-5):.3f}")
        1.294

    References:
        Abadi et al., "Deep Learning with Differential Privacy", arXiv 1607.00133.
    """

    num_examples: int
    expected_batch_size: float
    steps: int
    clip_norm: float
    noise_multiplier: float
    rule: ClipRule = _FLAT
    sampling: str = "poisson"
    adjacency: str = "add_or_remove_one"
    microbatch_size: int | None = None

    def __post_init__(self) -> None:
        def settle(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        settle("num_examples", _checks.count("num_examples", self.num_examples, "give the number of training examples"))
        batch = _checks.positive(
            "expected_batch_size", self.expected_batch_size, "give the mean number of examples a step"
        )
        settle("expected_batch_size", int(batch) if batch == int(batch) else batch)
        if batch > self.num_examples:
            raise UsageError(
                f"expected_batch_size={self.expected_batch_size} exceeds num_examples={self.num_examples}: "
                f"give at most {self.num_examples}"
            )
        settle("steps", _checks.count("steps", self.steps, "give the number of training steps"))
        settle("clip_norm", _checks.clip_norm(self.clip_norm))
        fix = "give the noise in units of the clip norm, such as 1.1"
        settle("noise_multiplier", _checks.non_negative("noise_multiplier", self.noise_multiplier, fix))
        if self.noise_multiplier > 0 and self.clip_norm == float("inf"):
            raise UsageError(
                "clip_norm=inf leaves the sensitivity unbounded, which no noise can hide: give a finite clip norm"
            )
        if isinstance(self.rule, Quantile):
            if self.rule.expected_batch_size not in (None, self.expected_batch_size):
                raise UsageError(
                    f"the rule's expected_batch_size={self.rule.expected_batch_size} is not the run's "
                    f"{self.expected_batch_size}: leave it out of Quantile"
                )
            settle("rule", replace(self.rule, expected_batch_size=float(self.expected_batch_size)))
            self.rule.noise_multiplier_of_sum(self.noise_multiplier)
        check_rule(self.rule, self.clip_norm)
        _checks.one_of("sampling", self.sampling, SAMPLINGS)
        _checks.one_of("adjacency", self.adjacency, ADJACENCIES)
        if self.microbatch_size is not None:
            size = _checks.count("microbatch_size", self.microbatch_size, "give the rows to hold in memory at once")
            settle("microbatch_size", size)

    @property
    def sampling_rate(self) -> float:
        """The probability with which each example enters each batch: expected_batch_size / num_examples."""
        return self.expected_batch_size / self.num_examples

    @property
    def event(self) -> "DpEvent":
        """The dp-accounting event of the whole run, for anyone to recompute its epsilon."""
        return self.event_of(self.steps)

    def event_of(self, steps: int) -> "DpEvent":
        """The event of the first `steps` steps of the run; more than the run has is an error."""
        if steps > self.steps:
            raise UsageError(
                f"steps={steps} exceeds the run's steps={self.steps}: describe a longer run with jaxdp.DPSGD"
            )
        return accounting.poisson_event(
            noise_multiplier=self.noise_multiplier, sample_rate=self.sampling_rate, steps=steps
        )

    def epsilon(self, *, delta: float, accountant: str = "rdp", steps: int | None = None) -> float:
        """What the run costs.

        Args:
            delta: the δ of (ε, δ), below 1 / num_examples.
            accountant: "rdp", "pld" (tighter, slower) or "classic" (the tutorials' conversion).
            steps: how many of the run's steps to account; all by default.

        Returns:
            ε under `adjacency`.

        Raises:
            UsageError: for a delta out of range, more steps than the run has, or a run without noise.
        """
        return self.spent(delta=delta, accountant=accountant, steps=steps).epsilon

    def spent(self, *, delta: float, accountant: str = "rdp", steps: int | None = None) -> accounting.Spent:
        """As `epsilon`, with the accountant's name and the optimal order."""
        _checks.delta(delta, self.num_examples)
        event = self.event_of(self.steps if steps is None else steps)
        return accounting.event_epsilon(event, delta=delta, accountant=accountant)

    def statement(self, *, delta: float, steps: int | None = None) -> str:
        """The privacy of the run in plain English: unit, adjacency, sampling, accountant, order, caveats."""
        _checks.delta(delta, self.num_examples)
        return accounting.statement(self, delta=delta, steps=steps)

    @property
    def noise_multiplier_of_sum(self) -> float:
        """The noise on the sum of gradients in units of its sensitivity: `noise_multiplier`, or more if a count is noised too."""
        if isinstance(self.rule, Quantile):
            return self.rule.noise_multiplier_of_sum(self.noise_multiplier)
        return self.noise_multiplier

    def sampler(self, key: Key[Array, ""], *, capacity: int = 0) -> PoissonSampler:
        """The batches of the run, as padded indices and masks for arrays of the user's own.

        Args:
            key: scalar key, used for sampling and nothing else.
            capacity: rows of a padded batch; 0 for as many as practically every draw fits. Larger draws come in a longer
                batch, never cut.

        Returns:
            A `PoissonSampler`: `for indices, mask in run.sampler(key)`.
        """
        return PoissonSampler(
            key=key,
            num_examples=self.num_examples,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            capacity=capacity,
        )

    def clipped_grad(self, loss_fn: Callable[..., Any], *, has_aux: bool = False) -> ClippedGrad:
        """`jaxdp.clipped_grad` with the run's clip norm, rule and microbatch size."""
        return clipped_grad(
            loss_fn, clip_norm=self.clip_norm, rule=self.rule, has_aux=has_aux, microbatch_size=self.microbatch_size
        )

    def privatize(self, key: Key[Array, ""]) -> optax.GradientTransformationExtraArgs:
        """`jaxdp.privatize` with the run's expected batch size and noise: under a `Quantile` rule, what is left for the sum."""
        return privatize(
            noise_multiplier=self.noise_multiplier_of_sum, expected_batch_size=self.expected_batch_size, key=key
        )

    def make_step(
        self, loss_fn: Callable[..., Any], optimizer: optax.GradientTransformation, *, has_aux: bool = False
    ) -> PrivateStep:
        """The whole private step, compiled once: draw, gather, clip, add noise, update.

        Args:
            loss_fn: `loss_fn(params, example, *shared) -> scalar`, the loss of one example; a parameter named `rng`, if
                it has one, gets a key of each example's own. With `has_aux` it returns `(scalar, aux)`.
            optimizer: any optax optimizer; it sees the noisy mean.
            has_aux: whether the loss returns auxiliary data, whose mean over the batch joins the metrics.

        Returns:
            A `PrivateStep`: `state = step.init(params, key)`, then `state, metrics = step(state, data)`.
        """
        return PrivateStep(self, loss_fn, optimizer, has_aux=has_aux)
