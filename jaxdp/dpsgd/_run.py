"""The run: one frozen description from which sampler, gradient function, noise, step and accounting are all built.

Because each part reads its numbers from here, they can't disagree, and the epsilon is that of what is executed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import jax
import optax
from jaxtyping import Array, Key

from .. import _checks, accounting
from .._elsewhere import elsewhere
from .._errors import UsageError
from .._types import LossFn
from ..clipping import RULES, ClippedGrad, ClipRule, Flat, check_is_rule, clipped_grad
from ..noise import NOISES, Gaussian, Noise, check_noise
from ..sampling import SAMPLINGS, Poisson, Sampler, Sampling, resolve, short_name
from ..transforms import privatize
from ..transforms._privatize import of_sensitivity_from
from ._plain import by_name, from_plain, refuse_name_of, to_plain
from ._step import PrivateStep

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    class _SamplingOrName:
        """The field `sampling`, to a type checker: a sampling or its short name is given, and a sampling is read."""

        def __get__(self, run: object, kind: type[Any] | None = None) -> Sampling: ...

        def __set__(self, run: object, given: Sampling | str) -> None: ...
else:
    _SamplingOrName = Sampling | str

_FLAT, _POISSON, _GAUSSIAN = Flat(), Poisson(), Gaussian()
_DEFAULT_SAMPLING: Any = _POISSON
_DEFAULTS = {"rule": _FLAT, "noise": _GAUSSIAN}  # which a description leaves out
_AS_DESCRIBED = (
    "It is stated of the run as it is described: make_step executes it so, and a loop of one's own does where each batch is the "
    "sampler's next one, used once and with its mask, all noise is that of one privatize, and a loss that draws is given "
    "a key of its own for each batch, as secret as the noise's."
)
_OWN = (*SAMPLINGS, *NOISES, *RULES)


@_checks.fields_explained
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
        sampling: who is in a batch, a value of `jaxdp.sampling` or its short name. `Poisson()`, "poisson": each example enters
            each batch independently, with rate B / n. `TruncatedPoisson(size)`, "truncated_poisson" with `truncated_batch_size`:
            at most so many of such a draw, chosen at random. `Shuffled()`, "shuffle": every example once an epoch, not amplified.
            The run has the value; `run.sampling.name` is the name.
        adjacency: "add_or_remove_one"; "replace_special", a record blanked in its place; "replace_one", a record exchanged for
            another. Shuffled epochs need one of the latter two. Not every combination has every accountant: `epsilon` says which.
        truncated_batch_size: the most examples of a batch under truncated Poisson sampling; a value has it already.
        unit: what is protected: "example", or "user" for data whose rows are users with all their records, as
            `jaxdp.data.group_by_user` makes them; n and B then count users, and the statement says so.
        records_per_user: k, the most records of a user that are used; for `unit="user"`.
        microbatch_size: how many examples to process at once; by default a size that suits the device. Changes memory and
            speed only: two runs that differ in it are equal, and a state of one goes on under the other.
        noise: what hides an example in the sum: `jaxdp.noise.Gaussian()`.

    Raises:
        UsageError: for values out of range, naming the field, the value and the fix.

    Examples:
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
    sampling: _SamplingOrName = _DEFAULT_SAMPLING
    adjacency: str = "add_or_remove_one"
    truncated_batch_size: int | None = None
    unit: str = "example"
    records_per_user: int | None = None
    microbatch_size: int | None = field(default=None, compare=False)
    noise: Noise = _GAUSSIAN

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Of names that aren't here."""
            instead = elsewhere(name)
            raise AttributeError(f"DPSGD has no {name}" + (f": {instead}" if instead else ""), name=name, obj=self)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._resolve_rule()
        check_noise(self.noise)
        self._resolve_sampling()
        self._check_unit()
        if self.microbatch_size is not None:
            size = _checks.count("microbatch_size", self.microbatch_size, "give the rows to hold in memory at once")
            _checks.set_fields(self, microbatch_size=size)

    def _check_numbers(self) -> None:
        _checks.set_fields(
            self, num_examples=_checks.count("num_examples", self.num_examples, "give the number of training examples")
        )
        fix = "give the mean number of examples a step"
        batch = _checks.positive("expected_batch_size", self.expected_batch_size, fix)
        _checks.set_fields(self, expected_batch_size=int(batch) if batch == int(batch) else batch)
        if batch > self.num_examples:
            raise UsageError(
                f"expected_batch_size={self.expected_batch_size} exceeds num_examples={self.num_examples}: "
                f"give at most {self.num_examples}"
            )
        _checks.set_fields(self, steps=_checks.count("steps", self.steps, "give the number of training steps"))
        _checks.set_fields(self, clip_norm=_checks.clip_norm(self.clip_norm))
        fix = "give the noise in units of the clip norm, such as 1.1; or any, and then run.with_noise_for(epsilon=..., delta=...)"
        _checks.set_fields(self, noise_multiplier=_checks.non_negative("noise_multiplier", self.noise_multiplier, fix))
        if self.noise_multiplier > 0 and self.clip_norm == float("inf"):
            raise UsageError(
                "clip_norm=inf leaves the sensitivity unbounded, which no noise can hide: give a finite clip norm"
            )

    def _resolve_rule(self) -> None:
        check_is_rule(self.rule)
        _checks.set_fields(self, rule=self.rule.in_run(self.expected_batch_size))
        self.rule.noise_multiplier_of_sum(self.noise_multiplier)  # refuses a total that leaves nothing for the sum
        self.rule.check(self.clip_norm)

    def _resolve_sampling(self) -> None:
        sampling, most = resolve(self.sampling, self.truncated_batch_size)
        _checks.one_of("adjacency", self.adjacency, accounting.ADJACENCIES)
        _checks.set_fields(self, sampling=sampling, truncated_batch_size=most)
        sampling.check(self)
        if self.adjacency not in sampling.adjacencies:
            raise UsageError(
                f"sampling={sampling.name!r} can't be accounted under adjacency={self.adjacency!r}: give "
                f"{' or '.join(map(repr, sampling.adjacencies))}"
            )

    def _check_unit(self) -> None:
        _checks.one_of("unit", self.unit, accounting.UNITS)
        if (self.unit == "user") != (self.records_per_user is not None):
            raise UsageError(
                f"unit={self.unit!r} with records_per_user={self.records_per_user}: with unit='user', and with that alone, "
                "give records_per_user=4, say, the most records of a user that are used"
            )
        if self.records_per_user is not None:
            number = _checks.count("records_per_user", self.records_per_user, "give the most records of a user")
            _checks.set_fields(self, records_per_user=number)

    @property
    def sampling_rate(self) -> float:
        """expected_batch_size / num_examples: under Poisson sampling the probability with which each example is drawn."""
        return self.expected_batch_size / self.num_examples

    @property
    def event(self) -> "DpEvent":
        """The dp-accounting event of the whole run, for anyone to recompute its epsilon."""
        return self.event_of(self.steps)

    def event_of(self, steps: int) -> "DpEvent":
        """The event of the first `steps` steps of the run; more than the run has is an error."""
        steps = _checks.whole("steps", steps, "give a number of the run's steps")
        if steps > self.steps:
            raise UsageError(
                f"steps={steps} exceeds the run's steps={self.steps}: describe a longer run with jaxdp.DPSGD"
            )
        self._check_division()
        event = self.sampling.event(self, max(steps, 1))  # refuses what has none, however few the steps
        if steps > 0:
            return event
        from dp_accounting import NoOpDpEvent

        return NoOpDpEvent()

    def _check_division(self) -> None:
        """Refuse a rule that leaves a part of a Gaussian mechanism for a count, where the sum's noise isn't accounted as one."""
        of_sum, total = self.noise_multiplier_of_sum, self.noise_multiplier
        if of_sum == total:
            return
        if any(self.noise.event(sigma) != _GAUSSIAN.event(sigma) for sigma in (total, of_sum)):
            raise UsageError(
                f"rule={self.rule!r} with noise={self.noise!r}: the rule's count and the sum are known as one mechanism under "
                "Gaussian noise alone; give jaxdp.noise.Gaussian(), or a rule without a count"
            )

    def ledger(self, steps: int | None = None, *, nonce: str | None = None) -> accounting.Ledger:
        """The run as a ledger of one entry, for as many of its steps as were made; all by default.

        `nonce`, if given, names the run's noise, so that no ledger counts one noise as two; `TrainState.ledger` does that.
        """
        made = self.steps if steps is None else _checks.whole("steps", steps, "give a number of the run's steps")
        ledger = accounting.Ledger(adjacency=self.adjacency, unit=self.unit)
        if made == 0:
            return ledger
        label = f"{made:,} steps of DP-SGD ({self.sampling.label}, {self.noise.label(self.noise_multiplier)})"
        return ledger.add(self.event_of(made), label, nonce=nonce)

    @property
    def accountants(self) -> tuple[str, ...]:
        """The accountants that can account the run in seconds, of "rdp", "pld" and "classic"; `jaxdp train` shows the epsilon
        of the first as it trains."""
        return accounting.accountants_of(self.event, self.adjacency)

    @_checks.names_explained
    def within(
        self, *, epsilon: float, delta: float, accountant: str = "rdp", ledger: accounting.Ledger | None = None
    ) -> "DPSGD":
        """The same run with no more steps than a budget allows: it stops before it overshoots.

        Args:
            epsilon: the budget ε.
            delta: the δ of (ε, δ), below 1 / num_examples.
            accountant: "rdp", "pld" or "classic".
            ledger: what has been spent of the budget before, on the same data.

        Returns:
            This run, or one with fewer steps.

        Raises:
            UsageError: where not one step is within the budget.

        Examples:
            >>> run = DPSGD(num_examples=60_000, expected_batch_size=256, steps=3600, clip_norm=1.0, noise_multiplier=1.1)
            >>> run.within(epsilon=1.0, delta=1e-5).steps
            1709
        """
        budget = self._budget(epsilon, delta, accountant, ledger)
        steps = budget.most(self.event_of, self.steps)
        if steps == 0:
            raise UsageError(
                f"epsilon={epsilon} at delta={delta} doesn't allow one step at noise_multiplier={self.noise_multiplier}: add "
                "noise, or allow a larger epsilon"
            )
        return replace(self, steps=steps)

    @_checks.names_explained
    def with_noise_for(
        self, *, epsilon: float, delta: float, accountant: str = "rdp", ledger: accounting.Ledger | None = None
    ) -> "DPSGD":
        """The same run with the smallest noise multiplier, within 1e-6, that a budget allows; arguments as of `within`.

        Examples:
            >>> run = DPSGD(num_examples=60_000, expected_batch_size=250, steps=3600, clip_norm=1.0, noise_multiplier=1.0)
            >>> print(f"{run.with_noise_for(epsilon=1.0, delta=1e-5).noise_multiplier:.4f}")
            1.2539
        """
        budget = self._budget(epsilon, delta, accountant, ledger)
        event = lambda sigma: replace(self, noise_multiplier=sigma, rule=_FLAT).event
        return replace(self, noise_multiplier=accounting.least_noise(budget, event))

    def _budget(
        self, epsilon: float, delta: float, accountant: str, ledger: accounting.Ledger | None
    ) -> accounting.Budget:
        _checks.delta(delta, self.num_examples)
        own = self.ledger(0)
        before = own if ledger is None else ledger
        own.check_like(before)
        before = own.extend(before)
        return accounting.Budget(epsilon=epsilon, delta=delta, accountant=accountant, ledger=before)

    def as_poisson(self) -> "DPSGD":
        """The same run with Poisson sampling, for comparison."""
        return replace(self, sampling=_POISSON, truncated_batch_size=None)

    @property
    def unit_in_words(self) -> tuple[str, str]:
        """The unit that is protected, and its plural."""
        if self.unit == "user":
            return f"one user, with at most {self.records_per_user} records (further ones were not used)", "users"
        return "one training example", "examples"

    @_checks.names_explained
    def epsilon(self, *, delta: float, accountant: str = "rdp", steps: int | None = None) -> float:
        """The epsilon of the run.

        Args:
            delta: the δ of (ε, δ), below 1 / num_examples.
            accountant: "rdp", "pld" (tighter, slower) or "classic" (the tutorials' conversion); `accountants` names
                those that can account this run.
            steps: how many of the run's steps to account; all by default. ε of fewer holds where it was settled beforehand that
                there would be no more: who stops for what was seen on the way has ε of all.

        Returns:
            ε under `adjacency`.

        Raises:
            UsageError: for a delta out of range or below what the noise's end takes, more steps than the run has, a run without
                noise, or an accountant that can't account its sampling under its adjacency, or not in seconds.
        """
        return self.spent(delta=delta, accountant=accountant, steps=steps).epsilon

    def spent(self, *, delta: float, accountant: str = "rdp", steps: int | None = None) -> accounting.Spent:
        """As `epsilon`, with the accountant's name and the optimal order."""
        _checks.delta(delta, self.num_examples)
        event = self.event_of(self.steps if steps is None else steps)
        return accounting.event_epsilon(event, delta=delta, accountant=accountant, adjacency=self.adjacency)

    @_checks.names_explained
    def statement(
        self,
        *,
        delta: float,
        steps: int | None = None,
        spent_before: accounting.Ledger | None = None,
        accountant: str = "rdp",
    ) -> str:
        """The privacy of the run in plain English: unit, adjacency, sampling, accountants, caveats, the ledger's total.

        The ε of `accountant` is told first, where there are two. Of a loop of one's own it holds as far as the loop does what it
        describes, which the text says.
        """
        _checks.delta(delta, self.num_examples)
        notes = (_AS_DESCRIBED,)
        return accounting.statement(
            self, delta=delta, steps=steps, spent_before=spent_before, accountant=accountant, notes=notes
        )

    @property
    def noise_multiplier_of_sum(self) -> float:
        """The noise on the sum of gradients in units of its sensitivity: `noise_multiplier`, or more if a count is noised too."""
        return self.rule.noise_multiplier_of_sum(self.noise_multiplier)

    def sampler(self, key: Key[Array, ""], *, capacity: int = 0) -> Sampler:
        """The batches of the run, for arrays of the user's own: `for batch, mask in run.sampler(key).take((X, Y))`.

        Args:
            key: scalar key, used for sampling and nothing else.
            capacity: rows of a padded batch under Poisson sampling; 0 for as many as practically every draw fits. Larger draws
                come in a longer batch, never cut. Other samplings have batches of one size.

        Returns:
            A `PoissonSampler`, `TruncatedPoissonSampler` or `ShuffledSampler`, or that of a sampling of the user's own. Its
            `take` checks that there are num_examples rows; iterated itself it gives padded indices and masks, those of padding
            beyond the data.

        Raises:
            UsageError: for a capacity under a sampling whose batches have one size; for what is no scalar key.
        """
        _checks.key(key)
        return self.sampling.sampler(self, key, capacity=capacity)

    @_checks.names_explained
    def clipped_grad(self, loss_fn: LossFn, *, has_aux: bool = False, precision: str = "auto") -> ClippedGrad:
        """`jaxdp.clipped_grad` with the run's clip norm, rule and microbatch size. What is shared with an axis of
        length num_examples is refused, unless by `jaxdp.Shared`; so are a call without the `mask` of its batch, and for a run of
        users what isn't as `jaxdp.data.group_by_user` gives it."""
        grad_fn = clipped_grad(
            loss_fn,
            clip_norm=self.clip_norm,
            rule=self.rule,
            has_aux=has_aux,
            microbatch_size=self.microbatch_size,
            precision=precision,
        )
        return replace(grad_fn, num_examples=self.num_examples, records_per_user=self.records_per_user)

    def privatize(self, key: Key[Array, ""]) -> optax.GradientTransformationExtraArgs:
        """`jaxdp.privatize` with the run's noise, expected batch size and steps; of a `Quantile` rule's noise, what is left.

        An update after the run's last step is refused, or under `jax.jit` NaN throughout: epsilon is of these steps alone. So
        is one with a sensitivity below the run's clip norm, unless that is in the state of the rule.
        """
        transform = privatize(
            noise_multiplier=self.noise_multiplier_of_sum,
            expected_batch_size=self.expected_batch_size,
            key=key,
            noise=self.noise,
            steps=self.steps,
        )
        in_state = self.rule.init(self.clip_norm, jax.random.key(0, impl=_checks.THREEFRY)) is not None
        return transform if in_state else of_sensitivity_from(self.clip_norm, transform)

    def make_step(
        self,
        loss_fn: LossFn,
        optimizer: optax.GradientTransformation,
        *,
        has_aux: bool = False,
        precision: str = "auto",
        self_check: bool = True,
    ) -> PrivateStep:
        """The whole private step, compiled once: draw, gather, clip, add noise, update.

        On several devices it runs as the user's arrays are laid out, by `jax.sharding.NamedSharding` on one mesh: parameters
        stay where they are, replicated or divided; each microbatch is divided over the axes that the data's rows are divided
        over, or, where every device has all data, over those that no parameter is divided over (all axes if there are none).
        The devices' sums are added up once a step. Draws and noise are the same on every mesh, and so is epsilon.

        A mesh of several processes (`jax.distributed.initialize`) has devices of all of them. Before the first step they
        compare hashes of the run, the state and its keys, the program, the versions of packages and the data that more than
        one of them holds, and each refuses to go on where these differ.

        Args:
            loss_fn: `loss_fn(params, example, *shared) -> scalar`, the loss of one example; a parameter named `rng`, if
                it has one, gets a key of each example's own. With `has_aux` it returns `(scalar, aux)`.
            optimizer: any optax optimizer; it sees the noisy mean.
            has_aux: whether the loss returns auxiliary data, whose mean over the batch joins the metrics.
            precision: of norms and sums, as for `jaxdp.clipped_grad`.
            self_check: whether to hold the clipped gradient against plain differentiation before the first step, on two
                random examples of the data's shapes and types; a disagreement is an error that names the parameter. It takes
                half as long as compiling the step does: of CPU time 2.4 s for an MLP of 1.9 million parameters, 3 s for the
                tutorials' CNN, 11 s for a transformer of four blocks; and memory for two examples' gradients. On a GPU or TPU
                the step is compiled meanwhile.

        Returns:
            A `PrivateStep`: `state = step.init(params, key)`, then `state, metrics = step(state, data)`.

        Raises:
            UsageError: here for an optimizer that would get noise of its own at every micro-step; in the first step for what
                the self-check finds.
        """
        return PrivateStep(self, loss_fn, optimizer, has_aux=has_aux, precision=precision, self_check=self_check)

    def to_dict(self) -> dict[str, Any]:
        """The run as plain dicts, lists, strings and numbers, for JSON; what a run's folder stores.

        A sampling of jaxdp's is written by its short name; other values as `{"type": class name, field: value, ...}`. The flat
        rule and Gaussian noise are left out.

        Raises:
            UsageError: for a value that holds what JSON can't, such as a `PerGroup` with a function for its labels, and for a
                class of the user's own that has the name of one of jaxdp's.
        """
        refuse_name_of(_OWN, (self.rule, self.sampling, self.noise))
        described = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, default in _DEFAULTS.items():
            if described[name] == default:
                del described[name]
        described["sampling"] = short_name(self.sampling) or self.sampling
        return {name: to_plain(value, name) for name, value in described.items()}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any], known: Collection[type[Any]] = ()) -> "DPSGD":
        """The inverse of `to_dict`.

        Args:
            description: what it gave.
            known: the classes of the user's own samplings, rules and noises. No others are made: a file from a stranger can
                name a class, and runs no code by it.

        Returns:
            The run.

        Raises:
            UsageError: for what describes no run, or names a class that isn't known.

        Examples:
            >>> run = DPSGD(num_examples=60_000, expected_batch_size=256, steps=3600, clip_norm=1.0, noise_multiplier=1.1)
            >>> DPSGD.from_dict(run.to_dict()) == run
            True
        """
        _checks.instance("description", description, Mapping, "give what DPSGD.to_dict gave")
        _checks.instance(
            "known", known, list | tuple | set | frozenset, "give the classes of your own, such as (MySampling,)"
        )
        kinds = by_name(_OWN, known)
        found = {name: from_plain(value, name, kinds) for name, value in description.items()}
        try:
            return cls(**found)
        except TypeError as error:
            raise UsageError(f"description is of no run ({error}): give what DPSGD.to_dict gave") from error


jax.tree_util.register_static(DPSGD)  # part of a training state, and no array
