r"""Clip rules: how the norm of an example's gradient becomes the factor by which it is scaled.

A rule sees norms and nothing else, so that every method of computing them serves every rule. Under each of them a scaled
gradient is no longer than the clip norm C: adding or removing one example moves the sum by at most C, its sensitivity.
`Quantile` changes C from step to step, and then the sensitivity follows it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Key

from .. import _checks
from .._errors import UsageError
from ..noise import standard_normal
from ..noise._copies import each_with_its_own
from ..noise._keys import Domain, own_key

_DOWN = 1 - 2.0**-22  # more than the roundings that a factor's computation adds to those of its norm


class Groups(NamedTuple):
    """Leaves that are clipped together.

    Attributes:
        of_leaf: each leaf's group, in the order of the flattened tree.
        shares: of each group, its clip norm in units of the joint one; their squares add up to 1.
    """

    of_leaf: tuple[int, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Flat:
    r"""Scale by \(\min(1, C / \lVert g\rVert)\): the rule of DP-SGD. Sensitivity C.

    References:
        Abadi et al., "Deep Learning with Differential Privacy", arXiv 1607.00133, algorithm 1.
    """

    def groups(self, params: Any) -> Groups:
        """All leaves in one group."""
        return _one_group(params)

    def factors(self, upper: Float[Array, " B"], clip_norm: Float[Array, ""]) -> Float[Array, " B"]:
        """float32 [B]: the factors for norms of at most `upper`, whatever it is for NaN and inf."""
        return jnp.minimum(jnp.float32(1), clip_norm / jnp.maximum(upper, jnp.finfo(jnp.float32).tiny))

    def in_words(self, clip_norm: float) -> str:
        """What happened to a gradient, for a statement."""
        return f"clipped to L2 norm {clip_norm:g}"

    def in_run(self, expected_batch_size: float) -> "Flat":
        """The rule in a run of such batches."""
        del expected_batch_size
        return self

    def noise_multiplier_of_sum(self, total: float) -> float:
        """The noise multiplier for the sum of gradients that makes `total` with what else the rule noises: nothing."""
        return total


@dataclass(frozen=True, kw_only=True, eq=False)  # compared by identity: its labels may be any pytree
class PerGroup:
    r"""Clip each group of leaves on its own, group k to \(C_k = C \sqrt{w_k / \sum_j w_j}\).

    The sensitivity is that of all groups together, \(\sqrt{\sum_k C_k^2} = C\).

    Args:
        labels: a pytree of strings like params, or a prefix of it, or a function from params to that: the group of each
            leaf. By default each leaf is a group of its own.
        weights: how the squared clip norm is divided, by label; in equal parts by default.

    Raises:
        UsageError: in the call, for a label without a weight or labels that don't fit params.

    Example:
        >>> import jax.numpy as jnp, jaxdp
        >>> rule = jaxdp.clipping.PerGroup(labels={"a": "left", "b": "right"}, weights={"left": 9, "right": 16})
        >>> loss = lambda p, x: x * (p["a"] + p["b"])
        >>> grad_fn = jaxdp.clipped_grad(loss, clip_norm=5.0, rule=rule)
        >>> out = grad_fn({"a": jnp.float32(0), "b": jnp.float32(0)}, jnp.array([100.0]))
        >>> print(f"{out.grads['a']:.3f} {out.grads['b']:.3f}")
        3.000 4.000

    References:
        McMahan et al., "Learning Differentially Private Recurrent Language Models", arXiv 1710.06963, section 3.
    """

    labels: Any = None
    weights: Mapping[str, float] | None = None

    def groups(self, params: Any) -> Groups:
        """The leaves by label."""
        leaves = jax.tree.leaves(params)
        if self.labels is None:
            labels = [str(i) for i in range(len(leaves))]
        else:
            tree = self.labels(params) if callable(self.labels) else self.labels
            try:
                labels = jax.tree.leaves(
                    jax.tree.map(lambda label, part: jax.tree.map(lambda _: label, part), tree, params)
                )
            except ValueError as error:
                raise UsageError(
                    f"PerGroup: labels don't fit params: {error}; give params' tree or a prefix of it"
                ) from error
        _checks.texts("labels", labels)
        if self.weights is not None:
            _checks.instance("weights", self.weights, Mapping, "give a number by label, such as {'kernels': 1.0}")
        names = list(dict.fromkeys(labels))
        weights = dict.fromkeys(names, 1.0) if self.weights is None else self.weights
        if missing := set(names) - set(weights):
            raise UsageError(
                f"PerGroup: weights={dict(weights)} lacks the labels {sorted(missing)}: give each a weight"
            )
        fix = "give a share of the squared clip norm, such as 1.0"
        parts = [_checks.positive(f"weights[{name!r}]", weights[name], fix) for name in names]
        shares = tuple(math.sqrt(part / math.fsum(parts)) for part in parts)
        return Groups(tuple(names.index(label) for label in labels), shares)

    factors = Flat.factors

    def in_words(self, clip_norm: float) -> str:
        """What happened to a gradient, for a statement."""
        return f"clipped in groups of parameters, each to a part of the joint L2 norm {clip_norm:g}"

    def in_run(self, expected_batch_size: float) -> "PerGroup":
        """The rule in a run of such batches."""
        del expected_batch_size
        return self

    noise_multiplier_of_sum = Flat.noise_multiplier_of_sum


@dataclass(frozen=True, kw_only=True)
class Normalised:
    r"""Scale by \(C / (\lVert g\rVert + \gamma)\), short gradients too: no clip norm to tune. Sensitivity C.

    Args:
        stability: γ above zero, in the units of the gradient; what keeps short gradients apart from noise.

    References:
        Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger", arXiv 2206.07136,
        AUTO-S, section 4.
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        fix = "give γ in the units of the gradient's norm, such as 0.01"
        stability = _checks.positive("stability", self.stability, fix)
        if not 1e-30 <= stability <= 1e30:
            raise UsageError(f"stability={stability} must lie between 1e-30 and 1e30: {fix}")
        object.__setattr__(self, "stability", stability)

    def groups(self, params: Any) -> Groups:
        """All leaves in one group."""
        return _one_group(params)

    def factors(self, upper: Float[Array, " B"], clip_norm: Float[Array, ""]) -> Float[Array, " B"]:
        """float32 [B]: the factors for norms of at most `upper`, whatever it is for NaN and inf."""
        factors = clip_norm * jnp.float32(_DOWN) / (upper + jnp.float32(self.stability))
        return jnp.minimum(factors, jnp.finfo(jnp.float32).max)  # a zero gradient stays zero, whatever C over γ

    def in_words(self, clip_norm: float) -> str:
        """What happened to a gradient, for a statement."""
        return f"divided by its L2 norm plus {self.stability:g} and brought to an L2 norm below {clip_norm:g}"

    def in_run(self, expected_batch_size: float) -> "Normalised":
        """The rule in a run of such batches."""
        del expected_batch_size
        return self

    noise_multiplier_of_sum = Flat.noise_multiplier_of_sum


class QuantileState(NamedTuple):
    """The clip norm of the next step (float32 scalar), the key of the counts' noise, and the steps made (int32 scalar)."""

    clip_norm: Float[Array, ""]
    key: Key[Array, ""]
    step: Int32[Array, ""]


@dataclass(frozen=True, kw_only=True)
class Quantile:
    r"""Flat clipping whose C follows a quantile of the gradients' norms. The sensitivity of a step is its C.

    \[ C_{t+1} = C_t \exp\bigl(-\eta (\tilde b - \gamma)\bigr), \qquad
       \tilde b = \tfrac12 + \frac1B \Bigl(\sum_i \bigl(\mathbb 1[\lVert g_i\rVert \le C_t] - \tfrac12\bigr) + \sigma_b Z\Bigr) \]

    The count is a second look at the data. Its sensitivity is 1/2; with noise multipliers z for the sum and 2σ_b for the
    count, the step is one Gaussian mechanism of noise multiplier \((z^{-2} + (2\sigma_b)^{-2})^{-1/2}\). `jaxdp.DPSGD` takes
    its `noise_multiplier` as that total, and adds the noise to the sum that is left by `noise_multiplier_of_sum`.

    Args:
        quantile: γ, the fraction of gradients to leave unclipped.
        learning_rate: η, of log C.
        count_noise: σ_b, standard deviation of the count's noise in examples; a twentieth of the batch by default.
        expected_batch_size: B; `jaxdp.DPSGD` fills in its own.

    Raises:
        UsageError: for values out of range.

    References:
        Andrew et al., "Differentially Private Learning with Adaptive Clipping", arXiv 1905.03871, theorem 1 and algorithm 1.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float | None = None
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        fix = "give the fraction of gradients to leave unclipped, such as 0.5"
        if not 0 < _checks.positive("quantile", self.quantile, fix) < 1:
            raise UsageError(f"quantile={self.quantile} must lie between 0 and 1, both excluded: {fix}")
        _checks.positive("learning_rate", self.learning_rate, "give the step of the clip norm's logarithm, such as 0.2")
        if self.count_noise is not None:
            _checks.positive("count_noise", self.count_noise, "give the standard deviation in examples, such as 10")
        if self.expected_batch_size is not None:
            _checks.positive("expected_batch_size", self.expected_batch_size, "give the mean number of examples a step")

    def groups(self, params: Any) -> Groups:
        """All leaves in one group."""
        return _one_group(params)

    factors = Flat.factors

    def in_words(self, clip_norm: float) -> str:
        """What happened to a gradient, for a statement."""
        return (
            f"clipped to an L2 norm that began at {clip_norm:g} and followed the {self.quantile:g} quantile of the gradients' "
            f"norms, by a count in which noise of standard deviation {self._count_noise():g} hid each example's 1/2 (the "
            "accountants cover the count)"
        )

    def in_run(self, expected_batch_size: float) -> "Quantile":
        """The rule in a run of such batches; refuses another batch size than its own."""
        if self.expected_batch_size not in (None, expected_batch_size):
            raise UsageError(
                f"the rule's expected_batch_size={self.expected_batch_size} is not the run's {expected_batch_size}: leave it out "
                "of Quantile"
            )
        return replace(self, expected_batch_size=float(expected_batch_size))

    def init(self, clip_norm: float, key: Key[Array, ""]) -> QuantileState:
        """The state before the first step.

        Args:
            clip_norm: to begin with; finite.
            key: scalar key. The counts' noise is independent of all that `jaxdp.privatize` draws, even from the same key.

        Returns:
            A `QuantileState`.

        Raises:
            UsageError: for a clip norm out of range, or what is not a scalar key.
        """
        start = _checks.clip_norm(clip_norm)
        check_rule(self, start)
        _checks.key(key)
        return QuantileState(jnp.float32(start), own_key(key, Domain.QUANTILE), jnp.int32(0))

    def update(self, state: QuantileState, norms: Float[Array, " B"], mask: Bool[Array, " B"]) -> QuantileState:
        """The next step's state, from the norms that `clipped_grad` saw."""
        if not isinstance(state, QuantileState):
            raise UsageError(f"state is a {type(state).__name__}: begin with state = rule.init(clip_norm, key)")
        if not (_checks.is_real(norms) and _checks.is_array(mask) and jnp.shape(norms) == jnp.shape(mask)):
            raise UsageError(
                "norms and mask are not of one shape [B]: give out.norms of jaxdp.clipped_grad, and its mask"
            )
        return self.update_by_count(state, excess_within(norms, mask, state.clip_norm))

    def update_by_count(self, state: QuantileState, excess: Float[Array, ""]) -> QuantileState:
        """The same from \\(\\sum_i (\\mathbb 1[\\lVert g_i\\rVert \\le C] - 1/2)\\)."""
        batch = self.batch_size()
        step = each_with_its_own((state.key, state.step), excess, state.step)
        noise = standard_normal(jax.random.fold_in(state.key, step), ()) * jnp.float32(self._count_noise())
        fraction = jnp.clip((excess + noise) / jnp.float32(batch) + 0.5, 0, 1)
        change = jnp.exp(-jnp.float32(self.learning_rate) * (fraction - jnp.float32(self.quantile)))
        return QuantileState(jnp.clip(state.clip_norm * change, 1e-30, 1e30), state.key, state.step + 1)

    def noise_multiplier_of_sum(self, total: float) -> float:
        """z, the noise multiplier for the sum of gradients that makes `total` with the count's noise."""
        count = 2 * self._count_noise()
        if total >= count:
            raise UsageError(
                f"count_noise={count / 2:g} makes the count alone cost more than noise_multiplier={total:g} allows: give "
                f"more than {total / 2:g} examples of noise"
            )
        return 1 / math.sqrt(total**-2 - count**-2) if total > 0 else 0.0

    def _count_noise(self) -> float:
        return float(self.count_noise if self.count_noise is not None else self.batch_size() / 20)

    def batch_size(self) -> float:
        """B; refuses a rule that has none."""
        if self.expected_batch_size is None:
            raise UsageError("Quantile: expected_batch_size is missing: give the mean number of examples a step")
        return float(self.expected_batch_size)


ClipRule = Flat | PerGroup | Normalised | Quantile


def check_is_rule(rule: Any) -> None:
    """Refuse what is not a rule."""
    if not isinstance(rule, ClipRule):
        raise UsageError(
            f"rule={rule!r} is not a clip rule: give jaxdp.clipping.Flat(), PerGroup, Normalised or Quantile"
        )


def check_rule(rule: Any, clip_norm: float) -> None:
    """Refuse what is not a rule, a rule that lacks a number, and one that has nothing to scale to."""
    check_is_rule(rule)
    if math.isinf(clip_norm) and not isinstance(rule, Flat):
        raise UsageError(
            f"clip_norm=inf means no clipping, which {type(rule).__name__} can't do: give a finite clip norm"
        )
    if isinstance(rule, Quantile):
        rule.batch_size()


@dataclass(frozen=True)
class Clipping:
    """What a batch is clipped by: a rule, its clip norm (a plain number or a traced scalar), and the leaves' groups."""

    rule: ClipRule
    clip_norm: Any
    groups: Groups

    def by_group(self, leaves: Mapping[int, Any]) -> list[dict[int, Any]]:
        """A part of the leaves, by position, divided into their groups."""
        parts: list[dict[int, Any]] = [{} for _ in self.groups.shares]
        for i, leaf in leaves.items():
            parts[self.groups.of_leaf[i]][i] = leaf
        return parts

    def factors(
        self, uppers: Sequence[Float[Array, " B"]], mask: Bool[Array, " B"]
    ) -> tuple[Bool[Array, " B"], list[Float[Array, " B"]]]:
        """Which examples contribute, and by which factor each group.

        Args:
            uppers: for each group what each example's norm can't exceed, rounding included; NaN or inf for a bad example.
            mask: bool [B].

        Returns:
            bool [B], and float32 [B] for each group, 0 where an example doesn't contribute.
        """
        usable = mask
        for upper in uppers:
            usable &= jnp.isfinite(upper)
        if isinstance(self.clip_norm, float) and math.isinf(self.clip_norm):
            return usable, [usable.astype(jnp.float32) for _ in uppers]
        factors = []
        for upper, share in zip(uppers, self.groups.shares, strict=True):
            limit = jnp.float32(self.clip_norm) * jnp.float32(share if share == 1 else share * _DOWN)
            factors.append(jnp.where(usable, self.rule.factors(upper, limit), 0))
        return usable, factors


def excess_within(norms: Float[Array, " B"], mask: Bool[Array, " B"], clip_norm: Float[Array, ""]) -> Float[Array, ""]:
    """Half the number of examples within the clip norm, less half the number of those beyond; adding one moves it by 1/2."""
    return jnp.sum(jnp.where(mask, jnp.where(norms <= clip_norm, 0.5, -0.5), 0.0).astype(jnp.float32))


def _one_group(params: Any) -> Groups:
    return Groups((0,) * len(jax.tree.leaves(params)), (1.0,))
