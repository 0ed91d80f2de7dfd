"""`clipped_grad`: reads like `jax.grad`, returns the sum of clipped per-example gradients."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .. import _checks
from .._errors import UsageError
from .._mesh import by_the_compiler
from .._types import Batch, LossFn, Params
from ..jaxprs import for_cpus
from ._apart import foreign_primitives
from ._arithmetic import PRECISIONS, arithmetic_of
from ._clip import ClippedSum, Clipping
from ._inputs import (
    check_batch,
    check_loss,
    check_mask,
    check_params,
    check_users,
    example_keys,
    refuse_gradients_of_devices,
)
from ._per_example import sum_by_vmap
from ._reducer import MOST_EXAMPLES, Examples, are_many, given_back, reduce_examples, slice_batch, usual_microbatch_size
from ._shared import unwrap_shared
from ._static import make_static
from .ghost import Explanation, Traced, check_covered, explain, sum_by_ghost, trace_loss
from .rules import ClipRule, Flat, check_rule
from .rules._rule import groups_of

METHODS = ("auto", "ghost", "vmap")
_AT_ONCE_IN_TURN = 64  # gradients that are kept of examples computed one after another, where the user doesn't say
_IN_TURN = "which may not keep examples apart: these are computed one after another, and every gradient is materialised"
_FLAT = Flat()


class ClippedGrads(NamedTuple):
    """The result of `clipped_grad` for a batch of B examples; `losses`, `norms` and `aux` of masked ones are zero.

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

    loss_fn: LossFn
    clip_norm: float
    rule: ClipRule = _FLAT
    has_aux: bool = False
    method: str = "auto"
    strict: bool = False
    microbatch_size: int | None = None
    precision: str = "auto"
    num_examples: int | None = None  # of the run, if it is a run's
    records_per_user: int | None = None  # of the run, if it is of users

    def __post_init__(self) -> None:
        _checks.set_fields(self, clip_norm=_checks.clip_norm(self.clip_norm))
        _checks.one_of("method", self.method, METHODS)
        _checks.one_of("precision", self.precision, PRECISIONS)
        _checks.function("loss_fn", self.loss_fn, "give a function of (params, example)")
        for name in ("has_aux", "strict"):
            _checks.set_fields(self, **{name: _checks.flag(name, getattr(self, name))})
        check_rule(self.rule, self.clip_norm)
        if self.strict and self.method == "vmap":
            raise UsageError(
                'strict=True refuses what method="vmap" does, to materialise: choose method="auto" or "ghost"'
            )
        if self.microbatch_size is not None:
            size = _checks.count("microbatch_size", self.microbatch_size, "give the rows to hold in memory at once")
            _checks.set_fields(self, microbatch_size=size)

    def __call__(
        self,
        params: Params,
        batch: Batch,
        *shared: Any,
        mask: Bool[Any, " B"] | None = None,
        rng: Key[Array, ""] | None = None,
        rule_state: Any = None,
    ) -> ClippedGrads:
        """The sum of clipped gradients of `batch` at `params`; the arguments are those of `clipped_grad`'s docstring."""
        check_params(params)
        self.rule.clip_norm_now(rule_state, self.clip_norm)
        size = check_batch(batch)
        shared = self.check_shared(shared, size)
        if self.records_per_user is not None:
            check_users(batch, (size, self.records_per_user))
        if mask is None and self.num_examples is not None:
            raise UsageError(
                "mask is missing: a run's batches are filled up with rows that are nobody's, and with one of them among the "
                "examples a record changes the sum by twice its sensitivity. Pass mask=mask, which run.sampler(key).take gives "
                f"with each batch; where every row is one that the run's sampler drew, mask=jnp.ones({size}, bool)"
            )
        mask = jnp.ones(size, jnp.bool_) if mask is None else check_mask(mask, size)
        batch = jax.tree.map(jnp.asarray, batch)
        refuse_gradients_of_devices(params, (batch, shared, mask, rng), self.method)
        check_loss(self.loss_fn, self.has_aux, params, batch, shared, rng, self.num_examples, self.method)
        given = (params, batch, shared, mask, rng, rule_state)
        everywhere: Any = None
        return by_the_compiler(self._sum, given, ClippedGrads(params, *[everywhere] * 5))

    def _sum(self, params: Params, batch: Batch, shared: Any, mask: Any, rng: Any, rule_state: Any) -> ClippedGrads:
        """What a call gives, of checked arguments."""
        size, clip_norm = mask.shape[0], self.rule.clip_norm_now(rule_state, self.clip_norm)
        loss = self.trace(params, batch, shared, None if rng is None else example_keys(rng, 1))
        microbatch_size = self.usual_microbatch_size(loss, params, size)

        def process(examples: Examples) -> tuple[Any, Any]:
            grads, *of_each = self.sum_at_once(loss, params, examples, shared, clip_norm)
            return grads, of_each

        if microbatch_size >= size:
            grads, (losses, norms, aux) = process(_with_keys(batch, mask, rng, 0))
        else:
            take, used = slice_batch(batch, mask, microbatch_size)
            grads, (losses, norms, aux) = reduce_examples(
                process,
                lambda start: _with_keys(*take(start), rng, start),
                used=used,
                positions=size,
                microbatch_size=microbatch_size,
                many=are_many(size, microbatch_size),
            )
            grads = given_back(grads)
        refuse_gradients_of_devices(params, losses, self.method)
        sensitivity = jnp.float32(clip_norm)
        next_state = self.rule.advance(rule_state, self.rule.observe(norms, mask, sensitivity))
        return ClippedGrads(grads, losses, norms, aux, sensitivity, next_state)

    def explain(self, params: Params, batch: Batch, *shared: Any, rng: Key[Array, ""] | None = None) -> Explanation:
        """How "auto" and "ghost" deal with each parameter, and what that costs; nothing is computed.

        Args:
            params: as for a call, or their shapes, `jax.ShapeDtypeStruct`.
            batch: as for a call, or its shapes.
            *shared: as for a call.
            rng: as for a call.

        Returns:
            An `Explanation`: prints as a table; `leaves` has a record for each parameter.

        Raises:
            UsageError: as for a call.
        """
        check_params(params)
        shared = self.check_shared(shared, check_batch(batch))
        batch = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf), batch)
        check_loss(self.loss_fn, self.has_aux, params, batch, shared, rng, self.num_examples, self.method)
        plan = self._trace(params, batch, shared, None if rng is None else example_keys(rng, 1)).plan
        if others := foreign_primitives(plan.jaxpr):
            raise UsageError(f"there is nothing to explain: the loss runs {', '.join(others)}, {_IN_TURN}")
        return explain(plan, params)

    def check_shared(
        self, shared: tuple[Any, ...], size: int | None, call: str = "grad_fn(params, (X, Y))"
    ) -> tuple[Any, ...]:
        """The shared arguments as a step takes them; refuses what could be rows of the batch or of the run's data.

        Args:
            shared: what followed the batch.
            size: of the batch; None where there is none.
            call: how the batch is handed over, for the message.

        Returns:
            The same without `Shared`, each leaf that is no array made a part of the structure.

        Raises:
            UsageError: as for a call.
        """
        sizes = {"the batch's size": size, "the run's num_examples": self.num_examples}
        return make_static(unwrap_shared(shared, sizes, call))

    def trace(self, params: Params, batch: Batch, shared: tuple[Any, ...], keys: Any) -> Traced | None:
        """The loss as a jaxpr, whatever the batch's size; `keys` may be a single one.

        None for the method that needs none, and where examples are computed one after another, by that method, since the loss
        has primitives of which nobody knows that they keep examples apart.
        """
        if self.method == "vmap":
            return None
        loss = self._trace(params, batch, shared, keys)
        if others := foreign_primitives(loss.plan.jaxpr):
            if self.strict:
                raise UsageError(f"strict=True: the loss runs {', '.join(others)}, {_IN_TURN}")
            return None
        if self.strict:
            check_covered(loss.plan, params)
        return loss

    def _trace(self, params: Params, batch: Batch, shared: tuple[Any, ...], keys: Any) -> Traced:
        groups = groups_of(self.rule, params).of_leaf
        return trace_loss(
            self.loss_fn, self.has_aux, params, batch, shared, keys, groups, arithmetic_of(self.precision)
        )

    def usual_microbatch_size(self, loss: Traced | None, params: Params, examples: float, devices: int = 1) -> int:
        """How many of a batch's examples to process at once: as the user says, or under "auto" what suits each device, or all.

        Under "ghost" no more than whose sum, one product, rounding leaves near to what it is.
        """
        if loss is None and self.method != "vmap" and self.microbatch_size is None:
            return devices * _AT_ONCE_IN_TURN
        if self.microbatch_size is not None or loss is None:
            return self.microbatch_size or math.ceil(examples)
        if self.method != "auto":
            return math.ceil(examples / math.ceil(examples / (devices * MOST_EXAMPLES)))
        parameters = sum(4 * math.prod(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(params))
        return devices * usual_microbatch_size(examples / devices, loss.plan.activations, parameters)

    def sum_at_once(
        self, loss: Traced | None, params: Params, examples: Examples, shared: tuple[Any, ...], clip_norm: Any
    ) -> ClippedSum:
        """The clipped sum of examples in one piece, of checked arguments; `loss` is what `trace` made."""
        clipping = Clipping.of(self.rule, clip_norm, params)

        def run(params: Params, examples: Examples) -> ClippedSum:
            if loss is not None:
                out = sum_by_ghost(loss, clipping, params, examples, shared)
            else:
                out = sum_by_vmap(self.loss_fn, self.has_aux, clipping, params, examples, shared)
            losses, aux = jax.tree.map(lambda leaf: _zero_where_masked(leaf, examples.mask), (out.losses, out.aux))
            return out._replace(losses=losses, aux=aux)

        return for_cpus(run, params, examples)


@_checks.names_explained
def clipped_grad(
    loss_fn: LossFn,
    *,
    clip_norm: float,
    rule: ClipRule = _FLAT,
    has_aux: bool = False,
    method: str = "auto",
    strict: bool = False,
    microbatch_size: int | None = None,
    precision: str = "auto",
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
            `clip_norm` is then where it begins.
        has_aux: whether the loss returns auxiliary data.
        method: "vmap" materialises per-example gradients. "ghost" reads the loss's jaxpr, and takes norms and sums from the
            inputs and output cotangents of each product, convolution and lookup; only what no such rule covers is
            materialised, for that parameter alone. "auto" is "ghost" in microbatches of a size that suits the device. All
            agree to float rounding. By each of them, a loss with primitives that JAX itself doesn't have is computed for one
            example after another, and its gradients are materialised.
        strict: refuse, with an error that names the place, a parameter that no rule covers, and whose gradient is larger than
            what it is used in; what a rule forms, and what is transformed before it is used, `explain` tells.
        microbatch_size: how many examples to process at once; by default what suits the device under "auto", else the whole
            batch, or under "ghost" 1,024 at the most. Bounds memory; need not divide B; changes no result beyond the order of
            the sum. Microbatches of padding alone at the end of a batch are not computed.
        precision: of the norms and sums of "auto" and "ghost". "float32": all of it. "bfloat16": weight gradients from factors
            that are rounded once to what a TPU's matrix unit reads, as in ordinary training there; norms are those of the
            rounded numbers, as upper bounds that are a per cent or two higher as a rule, and more over hundreds of rows that
            have nothing in common. "tensorfloat32": likewise what a GPU's tensor cores read, an eighth of that higher;
            a convolution's comes from products of its patches, and in loops is left in float32. "auto": that of the default
            device, "float32" on a CPU.

    Returns:
        A `ClippedGrad`: `grad_fn(params, batch, *shared, mask=None, rng=None, rule_state=None) -> ClippedGrads`, to be called
        within `jax.jit` (by itself, parts of it are compiled anew at each call), where `batch` is a pytree with a leading axis
        [B] on every leaf, inputs and labels together: `(X, Y)`. `shared` goes to every example as it is, such as frozen weights
        or a step number; in it, what has an axis of length B, two or more, is wrapped in `jaxdp.Shared`, and what is no array,
        such as a number, a string or a function, is never traced. `mask` is bool [B] and False for padding, which contributes
        exactly zero, and from `rng` each example's loss gets a key of its own as `rng=`, by its position. Let `rng` be new for
        each draw and as secret as the noise's key: a record more moves the positions of others, whose gradients stay alike only
        for those who don't know their keys.

    Raises:
        UsageError: here for a clip norm, method or microbatch size out of range; in the call for parameters that aren't
            floating point, leaves that disagree on B, an empty batch, a loss that isn't a scalar, a mask of another shape, and
            what is shared with an axis of length B, or in a run's function num_examples.

    Examples:
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
        precision=precision,
    )


def _with_keys(batch: Batch, mask: Bool[Array, " m"], rng: Any, start: int | Int[Array, ""]) -> Examples:
    """The examples from a position on, with the keys of their positions."""
    return Examples(batch, mask, None if rng is None else example_keys(rng, mask.shape[0], start))


def _zero_where_masked(leaf: Any, mask: Bool[Array, " B"]) -> Any:
    return jnp.where(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype))
