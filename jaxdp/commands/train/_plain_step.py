"""Training without privacy, behind the same face as the private step: shuffled batches and an ordinary gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from ..._types import Example, LossFn, Params
from ...clipping import takes_rng
from ...dpsgd._step import RunKeys, StepMetrics, TrainState


class PlainStep:
    """`init`, and `many` steps of minibatch descent; every epoch visits the examples in a new random order."""

    def __init__(
        self,
        loss_fn: LossFn,
        optimizer: optax.GradientTransformation,
        *,
        batch_size: int,
        steps_per_epoch: int,
    ) -> None:
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._batch_size = batch_size
        self._steps_per_epoch = steps_per_epoch
        self._takes_rng = takes_rng(loss_fn)
        self._compiled = jax.jit(self._one_step, donate_argnums=(0, 1))
        self._order = jax.jit(
            lambda key, epoch, n: jax.random.permutation(jax.random.fold_in(key, epoch), n), static_argnums=2
        )
        self._epoch: tuple[int, Any] | None = None

    def init(self, params: Params, key: Key[Array, ""]) -> TrainState:
        """The state before the first step."""
        params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
        return TrainState(params, self._optimizer.init(params), RunKeys.split_from(key), 0)

    def close(self) -> None:
        """End what reads ahead of the steps over a source."""

    def many(self, state: TrainState, data: Any, *, num_steps: int) -> tuple[TrainState, StepMetrics]:
        """`num_steps` steps, dispatched one by one; the metrics are stacked [num_steps]."""
        params, opt_state, metrics = state.params, state.opt_state, []
        for step in range(state.step, state.step + num_steps):
            order = self._order_of_epoch(
                state.keys.sampling, step // self._steps_per_epoch, len(jax.tree.leaves(data)[0])
            )
            params, opt_state, metric = self._compiled(params, opt_state, state.keys.loss, jnp.int32(step), order, data)
            metrics.append(metric)
        stacked = metrics[0] if num_steps == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *metrics)
        return state._replace(params=params, opt_state=opt_state, step=state.step + num_steps), stacked

    def _order_of_epoch(self, key: Any, epoch: int, size: int) -> Any:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._order(key, epoch, size))
        return self._epoch[1]

    def _one_step(
        self, params: Params, opt_state: Any, loss_key: Any, step: Any, order: Any, data: Any
    ) -> tuple[Any, Any, StepMetrics]:
        start = (step % self._steps_per_epoch) * self._batch_size
        rows = (start + jnp.arange(self._batch_size, dtype=jnp.int32)) % order.shape[0]
        batch = jax.tree.map(lambda leaf: leaf[order[rows]], data)
        keys = jax.random.split(jax.random.fold_in(loss_key, step), self._batch_size)

        def mean_loss(params: Params) -> tuple[Any, Any]:
            def one(example: Example, key: Any) -> Any:
                return self._loss_fn(params, example, **({"rng": key} if self._takes_rng else {}))

            losses, accuracies = jax.vmap(one)(batch, keys)
            return losses.mean(), accuracies.mean()

        (loss, accuracy), grads = jax.value_and_grad(mean_loss, has_aux=True)(params)
        updates, opt_state = self._optimizer.update(grads, opt_state, params)
        metrics = StepMetrics(jnp.int32(self._batch_size), loss, jnp.float32(0), accuracy)
        return optax.apply_updates(params, updates), opt_state, jax.tree.map(lambda leaf: leaf[None], metrics)
