"""Training without privacy, behind the same face as the private step: shuffled batches and an ordinary gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from ..._types import Example, LossFn, Params
from ...clipping import takes_rng
from ...dpsgd._state import RunKeys, StepMetrics, TrainState
from ...reading import Reader, Source


class PlainStep:
    """`init`, and `many` steps of minibatch descent; every epoch visits the examples in a new random order."""

    def __init__(
        self,
        loss_fn: LossFn,
        optimizer: optax.GradientTransformation,
        *,
        batch_size: int,
        steps_per_epoch: int,
        steps: int = 2**31,
    ) -> None:
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._batch_size = batch_size
        self._steps_per_epoch = steps_per_epoch
        self._steps = steps  # beyond which nothing is read ahead
        self._takes_rng = takes_rng(loss_fn)
        self._compiled = jax.jit(self._one_step, donate_argnums=(0, 1))
        self._of_batch = jax.jit(self._step_of_batch, donate_argnums=(0, 1))
        self._order = jax.jit(
            lambda key, epoch, n: jax.random.permutation(jax.random.fold_in(key, epoch), n), static_argnums=2
        )
        self._epoch: tuple[int, Any] | None = None
        self._reader: Reader | None = None
        self._waited = 0.0

    def init(self, params: Params, key: Key[Array, ""]) -> TrainState:
        """The state before the first step."""
        params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
        return TrainState(params, self._optimizer.init(params), RunKeys.split_from(key), 0)

    @property
    def waited(self) -> float:
        """Seconds that steps over a source have waited for its records."""
        return self._waited + (self._reader.waited if self._reader else 0.0)

    def close(self) -> None:
        """End what reads ahead of the steps over a source."""
        if self._reader is not None:
            self._waited = self.waited
            self._reader.close()
            self._reader = None

    def many(self, state: TrainState, data: Any, *, num_steps: int) -> tuple[TrainState, StepMetrics]:
        """`num_steps` steps, dispatched one by one; the metrics are stacked [num_steps].

        Over a `jaxdp.reading.Source` of examples they follow from one another: with each state as the last call returned it.
        """
        if isinstance(data, Source):
            return self._over_source(state, data, num_steps)
        params, opt_state, metrics = state.params, state.opt_state, []
        for step in range(state.step, state.step + num_steps):
            order = self._order_of_epoch(
                state.keys.sampling, step // self._steps_per_epoch, len(jax.tree.leaves(data)[0])
            )
            params, opt_state, metric = self._compiled(params, opt_state, state.keys.loss, jnp.int32(step), order, data)
            metrics.append(metric)
        return state._replace(params=params, opt_state=opt_state, step=state.step + num_steps), _stacked(metrics)

    def _over_source(self, state: TrainState, source: Source, num_steps: int) -> tuple[TrainState, StepMetrics]:
        params, opt_state, metrics = state.params, state.opt_state, []
        if self._reader is None:
            self._reader = self._reading(state, source)
        try:
            for step in range(state.step, state.step + num_steps):
                (block,) = self._reader.blocks(step)
                params, opt_state, metric = self._of_batch(
                    params, opt_state, state.keys.loss, jnp.int32(step), block.rows
                )
                metrics.append(metric)
        except BaseException:  # of a record that can't be read: the next step begins to read anew
            self.close()
            raise
        return state._replace(params=params, opt_state=opt_state, step=state.step + num_steps), _stacked(metrics)

    def _reading(self, state: TrainState, source: Source) -> Reader:
        """What reads the batches of this step and all that follow."""

        def rows(step: int) -> np.ndarray:
            order = self._order_of_epoch(state.keys.sampling, step // self._steps_per_epoch, len(source))
            return np.asarray(order)[self._places(step, len(source))]

        return Reader(
            source,
            rows,
            block=self._batch_size,
            most=self._batch_size,
            first=state.step,
            steps=self._steps - state.step,
        )

    def _order_of_epoch(self, key: Any, epoch: int, size: int) -> Any:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._order(key, epoch, size))
        return self._epoch[1]

    def _one_step(
        self, params: Params, opt_state: Any, loss_key: Any, step: Any, order: Any, data: Any
    ) -> tuple[Any, Any, StepMetrics]:
        rows = order[self._places(step, order.shape[0])]
        return self._step_of_batch(params, opt_state, loss_key, step, jax.tree.map(lambda leaf: leaf[rows], data))

    def _places(self, step: Any, size: int) -> Any:
        """Where in the order of an epoch the examples of a step are."""
        start = (step % self._steps_per_epoch) * self._batch_size
        return (start + jnp.arange(self._batch_size, dtype=jnp.int32)) % size

    def _step_of_batch(
        self, params: Params, opt_state: Any, loss_key: Any, step: Any, batch: Any
    ) -> tuple[Any, Any, StepMetrics]:
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


def _stacked(metrics: list[StepMetrics]) -> StepMetrics:
    return metrics[0] if len(metrics) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *metrics)
