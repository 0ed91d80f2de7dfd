"""The sums of a private step: clipped gradients of a draw's examples, out of arrays or handed over in blocks.

A draw is walked in microbatches, each of which is one addend: out of arrays in one loop, which gathers the rows itself, and from
a source in a loop for each block of a few microbatches. Both add the same addends in the same order. On several devices each has
addends of its own, and `Summing.finish` adds them up.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32, Key

from .._block import Block
from .._spread import Spread
from .._types import Batch, Params
from ..sampling import Draw
from ._clipped_grad import ClippedGrad
from ._inputs import check_batch, check_has_mean, check_loss, example_keys
from ._reducer import Compensated, Examples, are_many, gather_drawn, given_back, reduce_examples
from .ghost import Traced


class DrawSums(NamedTuple):
    """Sums over the examples of a draw.

    Attributes:
        grads: like params, float32. The sum of clipped per-example gradients, not yet private.
        losses: float32 scalar.
        clipped: float32 scalar. How many gradients were longer than the clip norm, or not finite.
        aux: pytree of float32. Of what the loss returned beside its value, with `has_aux`; None otherwise.
        sensitivity: float32 scalar. The L2 distance by which adding or removing one example can move `grads`.
        rule_state: the clip rule's state for the next step, for rules that have one; None otherwise.
    """

    grads: Any
    losses: Float[Array, ""]
    clipped: Float[Array, ""]
    aux: Any
    sensitivity: Float[Any, ""]
    rule_state: Any


class Change(NamedTuple):
    """Of a device's clipped sum, before it is added to those of others: `of(sums, blocks, sensitivity, state)`.

    `blocks` are as in `Spread.add_up`, `state` is a pytree of arrays, the same on every device.
    """

    of: Callable[[Any, Mapping[int, Block], Float[Array, ""], Any], Any]
    state: Any


@dataclass(frozen=True)
class Summing:
    """How the examples of a step are added up: by which gradient function, on which devices; traced.

    Attributes:
        grad_fn: of the run.
        spread: over which devices each microbatch is divided; None for one device.
        usual_size: a number of examples that few draws exceed; microbatches are made to fill it.
    """

    grad_fn: ClippedGrad
    spread: Spread | None
    usual_size: float

    def microbatch_size(self, params: Params, data: Any, shared: tuple[Any, ...], rng: Any, positions: int) -> int:
        """How many examples to process at once, of at most `positions`; a multiple of the devices.

        Args:
            params: pytree of arrays, or of their shapes and dtypes, as are the others.
            data: pytree with a leading axis on every leaf, whatever its length.
            shared: as `check_shared` returned them.
            rng: a key, for losses that take one.
            positions: the number of all examples.

        Raises:
            UsageError: for a loss that can't be clipped.
        """
        return self._size(self._checked(params, data, shared, rng), params, positions)

    def of_draw(
        self,
        params: Params,
        data: Any,
        draw: Draw,
        shared: tuple[Any, ...],
        *,
        rng: Key[Array, ""] | None = None,
        rule_state: Any = None,
        change: Change | None = None,
    ) -> DrawSums:
        """The sums over a draw, gathered a microbatch at a time, with nothing kept of each example.

        Args:
            params: pytree of arrays.
            data: pytree of arrays [num_examples, ...], with all examples.
            draw: of a sampler; no draw is too large.
            shared: as `check_shared` returned them.
            rng: scalar key, for losses that take one; an example's key follows from its position in the draw.
            rule_state: of the clip rule.
            change: of what each of several devices has, as in `finish`.

        Raises:
            UsageError: for a loss that can't be clipped, while tracing.
        """
        positions = check_batch(data)
        loss = self._checked(params, data, shared, rng)
        size = self._size(loss, params, positions)

        def add_up(onto: None, params: Params, data: Any, draw: Draw, shared: Any, rule_state: Any, rng: Any) -> Any:
            take, used = gather_drawn(data, draw, size, self.spread)
            one = self._process(params, data, shared, rule_state, rng, loss)
            return reduce_examples(
                lambda examples: (one(examples), None),
                lambda start: self._examples(*take(start), rng, start, size),
                used=used,
                positions=positions,
                microbatch_size=size,
                many=self._are_many(size),
                onto=onto,
            )[0]

        addends = self._on_each(add_up, None, params, data, draw, shared, rule_state, rng, size=size)
        return self.finish(addends, rule_state, change)

    def with_block(
        self,
        addends: Any,
        params: Params,
        rows: Batch,
        start: Int32[Array, ""],
        count: Int32[Array, ""],
        shared: tuple[Any, ...],
        *,
        rng: Key[Array, ""] | None = None,
        rule_state: Any = None,
    ) -> Any:
        """Addends, for `finish`, with those of further examples of the draw, in the order in which `of_draw` adds them.

        Args:
            addends: of the examples before; None for none.
            params: pytree of arrays.
            rows: pytree of arrays [k, m, ...], k microbatches; on several devices m is divided over them.
            start: the place in the draw of the first row, a multiple of m.
            count: how many of the rows were drawn; those behind them are no examples.
            shared: as `check_shared` returned them.
            rng: scalar key, for losses that take one.
            rule_state: of the clip rule.
        """
        microbatches, size = jax.tree.leaves(rows)[0].shape[:2]

        def of_own(
            onto: Any, params: Params, rows: Any, start: Any, count: Any, shared: Any, rule_state: Any, rng: Any
        ) -> Any:
            def examples_at(first: Any) -> Examples:
                own = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, first // size, keepdims=False), rows)
                mask = first + jnp.arange(size, dtype=jnp.int32) < count
                mask = mask if self.spread is None else self.spread.own(mask)
                return self._examples(own, mask, rng, start + first, size)

            one = self._process(params, jax.tree.map(lambda leaf: leaf[0], rows), shared, rule_state, rng)
            return reduce_examples(
                lambda examples: (one(examples), None),
                examples_at,
                used=count,
                positions=microbatches * size,
                microbatch_size=size,
                many=self._are_many(size),
                onto=onto,
            )[0]

        return self._on_each(
            of_own, addends, params, rows, start, count, shared, rule_state, rng, rows_axis=1, size=size
        )

    def several(self, size: int) -> Callable[[Any], Any]:
        """From a structure of sums to that of the addends, in microbatches of so many examples."""
        return (lambda sums: Compensated(sums, sums)) if self._are_many(size) else (lambda sums: sums)

    def _are_many(self, size: int) -> bool:
        return are_many(self.usual_size, size)

    def finish(self, addends: Any, rule_state: Any, change: Change | None = None) -> DrawSums:
        """The sums, of all addends added up; on several devices after a `change` of what each has, if there is one."""
        rule = self.grad_fn.rule
        sensitivity = jnp.float32(rule.clip_norm_now(rule_state, self.grad_fn.clip_norm))
        changed: tuple[Any, ...] = () if change is None else (change.of, sensitivity, change.state)
        own = given_back(addends)
        sums = own if self.spread is None else self.spread.add_up(own, *changed)
        grads, (observed, (losses, clipped, aux)) = sums
        return DrawSums(grads, losses, clipped, aux, sensitivity, rule.advance(rule_state, observed))

    def _on_each(self, part: Callable[..., Any], *args: Any, size: int, rows_axis: int = 0) -> Any:
        if self.spread is None:
            return part(*args)
        return self.spread.on_each(part, *args, rows_axis=rows_axis, several=self.several(size))

    def _process(
        self,
        params: Params,
        batch: Batch,
        shared: tuple[Any, ...],
        rule_state: Any,
        rng: Any,
        loss: Traced | None = None,
    ) -> Callable[[Examples], Any]:
        """From a device's own examples of a microbatch to its addend; `loss` as one device has traced it, if it has."""
        whole: Callable[[Params], Params] = (lambda params: params) if self.spread is None else self.spread.whole
        if loss is None or self.spread is not None:  # a jaxpr says within which mesh it was traced
            loss = self._trace(jax.eval_shape(whole, params), batch, shared, rng)
        clip_norm = self.grad_fn.rule.clip_norm_now(rule_state, self.grad_fn.clip_norm)

        def process(examples: Examples) -> Any:
            grads, losses, norms, aux = self.grad_fn.sum_at_once(loss, whole(params), examples, shared, clip_norm)
            observed = self.grad_fn.rule.observe(norms, examples.mask, jnp.float32(clip_norm))
            clipped = examples.mask & ~(norms <= clip_norm)
            check_has_mean(aux)
            sums = jax.tree.map(lambda leaf: jnp.sum(leaf.astype(jnp.float32), axis=0), (losses, clipped, aux))
            return grads if self.spread is None else self.spread.scattered(grads), (observed, sums)

        return process

    def _examples(
        self, batch: Batch, mask: Bool[Array, " m"], rng: Any, start: int | Int[Array, ""], size: int
    ) -> Examples:
        """A device's own examples, with the keys of their positions, of a microbatch of `size` that begins at `start`."""
        if rng is None:
            return Examples(batch, mask, None)
        first = start if self.spread is None else self.spread.first(start, size)
        return Examples(batch, mask, example_keys(rng, mask.shape[0], first))

    def _checked(self, params: Params, data: Any, shared: tuple[Any, ...], rng: Any) -> Traced | None:
        """The loss, traced, once it is seen that it can be clipped."""
        grad_fn = self.grad_fn
        check_loss(grad_fn.loss_fn, grad_fn.has_aux, params, data, shared, rng, grad_fn.num_examples, grad_fn.method)
        return self._trace(params, data, shared, rng)

    def _size(self, loss: Traced | None, params: Params, positions: int) -> int:
        parts = 1 if self.spread is None else self.spread.parts
        usual = min(self.grad_fn.usual_microbatch_size(loss, params, self.usual_size, parts), positions)
        return parts * math.ceil(usual / parts)

    def _trace(self, params: Params, batch: Batch, shared: tuple[Any, ...], rng: Any) -> Traced | None:
        return self.grad_fn.trace(params, batch, shared, None if rng is None else example_keys(rng, 1))
