"""`clipped_grad`: reads like `jax.grad`, returns the sum of clipped per-example gradients."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .. import _checks
from .._errors import UsageError
from ..jaxprs._convolutions import with_ordered_convolutions
from ._clip import clip_and_sum
from ._inputs import check_batch, check_loss, check_mask, check_params, example_keys
from ._microbatches import in_microbatches, usual_size
from ._per_example import per_example_values_and_grads
from ._rules import Clipping, ClipRule, Flat, Quantile, QuantileState, check_rule
from ._shared import unwrapped
from ._static import closed
from .ghost import Explanation, Traced, check_covered, clipped_sum, explain, traced

METHODS = ("auto", "ghost", "vmap")
_FLAT = Flat()


class ClippedGrads(NamedTuple):
    """What `clipped_grad` returns for a batch of B rows; masked rows are zero in `losses`, `norms` and `aux`.

    Attributes:
        grads: like params, float32. The SUM over the batch of clipped per-example gradients, not yet private.
        losses: float [B]. The loss of each example.
        norms: float32 [B]. The L2 norm of each example's gradient before clipping; NaN or inf marks an example that
            contributed zero.
        aux: pytree [B, ...]. What the loss returned beside its value, with `has_aux`; None otherwise.
        sensitivity: float32 scalar. The L2 distance by which adding or removing one example can move `grads`.
        rule_state: the clip rule's state for the next step, for rules that have one; None otherwise.
    """

    grads: Any
    losses: Float[Array, " B"]
    norms: Float[Array, " B"]
    aux: Any
    sensitivity: Float[Any, ""]
    rule_state: Any = None


@dataclass(frozen=True, kw_only=True)
class ClippedGrad:
    """The function that `clipped_grad` returns. See there."""

    loss_fn: Callable[..., Any]
    clip_norm: float
    rule: ClipRule = _FLAT
    has_aux: bool = False
    method: str = "auto"
    strict: bool = False
    microbatch_size: int | None = None
    num_examples: int | None = None  # of the run, if it is a run's

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", _checks.clip_norm(self.clip_norm))
        _checks.one_of("method", self.method, METHODS)
        _checks.function("loss_fn", self.loss_fn, "give a function of (params, example)")
        for name in ("has_aux", "strict"):
            object.__setattr__(self, name, _checks.flag(name, getattr(self, name)))
        check_rule(self.rule, self.clip_norm)
        if self.strict and self.method == "vmap":
            raise UsageError(
                'strict=True refuses what method="vmap" does, to materialise: choose method="auto" or "ghost"'
            )
        if self.microbatch_size is not None:
            size = _checks.count("microbatch_size", self.microbatch_size, "give the rows to hold in memory at once")
            object.__setattr__(self, "microbatch_size", size)

    def __call__(
        self,
        params: Any,
        batch: Any,
        *shared: Any,
        mask: Bool[Any, " B"] | None = None,
        rng: Key[Array, ""] | None = None,
        rule_state: Any = None,
    ) -> ClippedGrads:
        """The sum of clipped gradients of `batch` at `params`; the arguments are those of `clipped_grad`'s docstring."""
        check_params(params)
        clip_norm = self.clip_norm_now(rule_state)
        size = check_batch(batch)
        shared = closed(self.unwrapped(shared, size))
        mask = jnp.ones(size, jnp.bool_) if mask is None else check_mask(mask, size)
        batch = jax.tree.map(jnp.asarray, batch)
        check_loss(self.loss_fn, self.has_aux, params, batch, shared, rng)

        def at_once(batch: Any, mask: Bool[Array, " m"], start: int | Int[Array, ""]) -> tuple[Any, Any]:
            keys = None if rng is None else example_keys(rng, mask.shape[0], start)
            return self.sum_and_rows(loss, params, batch, mask, keys, shared, clip_norm)

        loss = self.traced(params, batch, shared, None if rng is None else example_keys(rng, 1))
        rows = self.usual_microbatch_size(loss, params, size)
        if rows >= size:
            grads, (losses, norms, aux) = at_once(batch, mask, 0)
        else:
            grads, (losses, norms, aux) = in_microbatches(at_once, batch, mask, rows)
        next_state = self.rule.update(rule_state, norms, mask) if isinstance(self.rule, Quantile) else None
        return ClippedGrads(grads, losses, norms, aux, jnp.float32(clip_norm), next_state)

    def clip_norm_now(self, rule_state: Any) -> Any:
        """The clip norm of a step: the number that was given, or the one in the rule's state; refuses a state amiss."""
        if not isinstance(self.rule, Quantile):
            if rule_state is not None:
                raise UsageError(f"rule_state was passed, but {type(self.rule).__name__} has no state: leave it out")
            return self.clip_norm
        if not isinstance(rule_state, QuantileState):
            raise UsageError(
                "Quantile needs its state: begin with state = rule.init(clip_norm, key), pass rule_state=state, and go on "
                "with out.rule_state"
            )
        return rule_state.clip_norm

    def explain(self, params: Any, batch: Any, *shared: Any, rng: Key[Array, ""] | None = None) -> Explanation:
        """How "auto" and "ghost" deal with each parameter, and what that costs; nothing is computed.

        Args:
            params: as for a call.
            batch: as for a call.
            *shared: as for a call.
            rng: as for a call.

        Returns:
            An `Explanation`: prints as a table; `leaves` has a record for each parameter.

        Raises:
            UsageError: as for a call.
        """
        check_params(params)
        shared = closed(self.unwrapped(shared, check_batch(batch)))
        batch = jax.tree.map(jnp.asarray, batch)
        check_loss(self.loss_fn, self.has_aux, params, batch, shared, rng)
        keys = None if rng is None else example_keys(rng, 1)
        return explain(self._trace(params, batch, shared, keys).plan, params)

    def unwrapped(
        self, shared: tuple[Any, ...], size: int | None, call: str = "grad_fn(params, (X, Y))"
    ) -> tuple[Any, ...]:
        """What is shared, as the loss gets it; refuses what could be rows of the batch or of the run's data."""
        return unwrapped(shared, {"the batch's size": size, "the run's num_examples": self.num_examples}, call)

    def traced(self, params: Any, batch: Any, shared: tuple[Any, ...], keys: Any) -> Traced | None:
        """The loss as a jaxpr, whatever the batch's size; None for the method that needs none. `keys` may be a single one."""
        if self.method == "vmap":
            return None
        loss = self._trace(params, batch, shared, keys)
        if self.strict:
            check_covered(loss.plan, params)
        return loss

    def _trace(self, params: Any, batch: Any, shared: tuple[Any, ...], keys: Any) -> Traced:
        groups = self.rule.groups(params).of_leaf
        return traced(self.loss_fn, self.has_aux, params, batch, shared, keys, groups)

    def usual_microbatch_size(self, loss: Traced | None, params: Any, rows: float) -> int:
        """How many of a batch's `rows` to process at once: as the user says, or under "auto" what suits the device."""
        if self.microbatch_size is not None or self.method != "auto" or loss is None:
            return self.microbatch_size or math.ceil(rows)
        parameters = sum(4 * jnp.size(leaf) for leaf in jax.tree.leaves(params))
        return usual_size(rows, loss.plan.activations, parameters)

    def sum_and_rows(
        self,
        loss: Traced | None,
        params: Any,
        batch: Any,
        mask: Bool[Array, " B"],
        keys: Any,
        shared: tuple[Any, ...],
        clip_norm: Any,
    ) -> tuple[Any, tuple[Any, Any, Any]]:
        """(grads, (losses, norms, aux)) for checked arguments, a key for each example or None, and the batch unsplit."""
        clipping = Clipping(self.rule, clip_norm, self.rule.groups(params))

        def run(params: Any, batch: Any, mask: Any, keys: Any) -> tuple[Any, Any]:
            if loss is not None:
                total, (losses, norms, aux) = clipped_sum(loss, clipping, params, batch, mask, keys, shared)
            else:
                values, grads = per_example_values_and_grads(self.loss_fn, self.has_aux, params, batch, shared, keys)
                losses, aux = values if self.has_aux else (values, None)
                total, norms = clip_and_sum(grads, mask, clipping)
            losses, aux = jax.tree.map(lambda leaf: _zero_where_masked(leaf, mask), (losses, aux))
            return total, (losses, norms, aux)

        return with_ordered_convolutions(run, params, batch, mask, keys)


def clipped_grad(
    loss_fn: Callable[..., Any],
    *,
    clip_norm: float,
    rule: ClipRule = _FLAT,
    has_aux: bool = False,
    method: str = "auto",
    strict: bool = False,
    microbatch_size: int | None = None,
) -> ClippedGrad:
    r"""The function that returns the sum of clipped per-example gradients.

    \[ \mathrm{grads} = \sum_{i=1}^{B} m_i \min\Bigl(1, \frac{C}{\lVert g_i\rVert_2}\Bigr) g_i, \qquad
       g_i = \nabla_\theta\, \mathrm{loss}(\theta, x_i) \]

    Whatever the loss takes as one example is the unit of privacy: an image, an image with its augmentations averaged in
    the loss, or a user with all their records. Norms, clip factors and sums are float32 whatever the model's dtype, and
    the clipped gradient's stored norm is never above `clip_norm`.

    The result is not private: it becomes so through `jaxdp.privatize`, to which `out.sensitivity` is handed along.

    Args:
        loss_fn: `loss_fn(params, example, *shared) -> scalar`, the loss of ONE example, without a batch axis; with
            `has_aux`, `-> (scalar, aux)`. It takes a keyword `rng` if the gradient function is called with one.
        clip_norm: the L2 norm C, in the units of the gradient. `inf` means no clipping, and then no noise can follow.
        rule: how a norm becomes a factor: `jaxdp.clipping.Flat()` as above, `PerGroup`, `Normalised` or `Quantile`. Under
            each of them C is the sensitivity; a `Quantile` has its C in a state, which goes in and comes out, and
            `clip_norm` is then not read.
        has_aux: whether the loss returns auxiliary data.
        method: "vmap" materialises per-example gradients. "ghost" reads the loss's jaxpr, and takes norms and sums from the
            inputs and output cotangents of each product, convolution and lookup; only what no such rule covers is
            materialised, for that parameter alone. "auto" is "ghost" in microbatches of a size that suits the device. All
            agree to float rounding.
        strict: refuse, with an error that names the place, a parameter whose gradient would be materialised and is
            larger than what it is used in.
        microbatch_size: how many examples to process at once; by default what suits the device under "auto", else the whole
            batch. Bounds memory; need not divide B; changes no result beyond the order of the sum. Microbatches of padding
            alone at the end of a batch are not computed.

    Returns:
        A `ClippedGrad`: `grad_fn(params, batch, *shared, mask=None, rng=None, rule_state=None) -> ClippedGrads`, where
        `batch` is a pytree with a leading axis [B] on every leaf, inputs and labels together: `(X, Y)`. `shared` goes to every
        example as it is, such as frozen weights or a step number; in it, what has an axis of length B, two or more, is wrapped in
        `jaxdp.Shared`, and what is no array, such as a number, a string or a function, is never traced. `mask` is bool [B] and
        False for padding, which contributes exactly zero, and from `rng` each example's loss gets a key of its own as `rng=`.

    Raises:
        UsageError: here for a clip norm, method or microbatch size out of range; in the call for parameters that aren't
            floating point, leaves that disagree on B, an empty batch, a loss that isn't a scalar, a mask of another shape, and
            what is shared with an axis of length B, or in a run's function num_examples.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = lambda w, example: 0.5 * (w - example) ** 2
        >>> out = clipped_grad(loss, clip_norm=1.0)(jnp.float32(0.0), jnp.array([-0.25, 8.0]))
        >>> print(f"{out.grads:.3f}", out.norms, out.sensitivity)
        -0.750 [0.25 8.  ] 1.0

    References:
        Abadi et al., "Deep Learning with Differential Privacy", arXiv 1607.00133, algorithm 1.
    """
    return ClippedGrad(
        loss_fn=loss_fn,
        clip_norm=clip_norm,
        rule=rule,
        has_aux=has_aux,
        method=method,
        strict=strict,
        microbatch_size=microbatch_size,
    )


def _zero_where_masked(leaf: Any, mask: Bool[Array, " B"]) -> Any:
    return jnp.where(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype))
