"""Teachers: from disjoint shards to an ensemble, by one compiled program that trains as many at once as suit the device."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int32, Key, Shaped

from .. import _checks
from .._errors import UsageError
from .._processes import all_well, is_first
from .._types import Batch, LossFn, Params
from ..clipping import takes_rng
from ..jaxprs import for_cpus
from ..noise._keys import Domain, own_key
from ..transforms import check_transform
from ._agreement import agree_on
from ._shards import (
    check_inputs,
    check_records,
    gathered,
    positions,
    shards,
    size_of_shards,
    warn_of_missing_classes,
)
from ._side_by_side import SideBySide, stacked

_ROWS = 1000  # inputs that a model is asked of at a time
DIVERGED = -2  # in a class's place, where a teacher's logits are NaN


@dataclass(frozen=True)
class Teachers:
    """An ensemble, its parameters stacked.

    Attributes:
        params: like those of one model, with a leading axis [teachers].
        shards: int32 [teachers, size], the rows that each was trained on; -1 ends a shorter shard. Disjoint.
    """

    params: Params
    shards: Int32[np.ndarray, "teachers size"]

    def predict(self, logits_fn: Callable[[Any, Any], Any], inputs: Any) -> Int32[np.ndarray, "teachers examples"]:
        """The class that each teacher predicts for each input: what `vote_counts` takes.

        Several processes call it together, each for its part of the teachers, and all get all predictions.

        Args:
            logits_fn: `logits_fn(params, input) -> [classes]`, for one input.
            inputs: a pytree with a leading axis [examples].

        Returns:
            int32 [teachers, examples]. A teacher whose logits are NaN votes for class 0, with a warning.

        Raises:
            UsageError: in every process, where they differ in the teachers, the inputs or the model, and where the logits of
                every teacher are NaN for an input: agreeing on class 0, they would be taken for very sure.
        """
        params_of = lambda teachers: (jax.tree.map(lambda leaf: leaf[teachers], self.params),)
        program = all_well(lambda: SideBySide(predicted_classes(logits_fn, inputs)))
        agree_on(teachers=self.params, inputs=inputs)
        return settled(np.concatenate([*program.map(params_of, range(len(self.shards)))]))

    def accuracy(
        self, logits_fn: Callable[[Any, Any], Any], inputs: Any, labels: Any
    ) -> Float[np.ndarray, " teachers"]:
        """The part of the examples that each teacher predicts right, [teachers]; on private examples, it is private."""
        return np.mean(self.predict(logits_fn, inputs) == np.asarray(labels)[None], axis=1)


def train_teachers(
    loss_fn: LossFn,
    init_fn: Callable[[Key[Array, ""]], Any],
    data: Any,
    *,
    num_teachers: int,
    optimizer: optax.GradientTransformation,
    epochs: int,
    batch_size: int,
    key: Key[Array, ""],
    at_once: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Teachers:
    """Train an ensemble on disjoint shards, all of it by one compiled program.

    Several processes (of `jax.distributed`) call it together with the same arguments, data included: each trains a part of the
    teachers on its own devices, and all get all teachers, the same as one process alone makes. So each holds the parameters of
    all of them in the host's memory.

    Args:
        loss_fn: `loss_fn(params, (input, label)) -> scalar` for one example, as for `jaxdp.clipped_grad`; one that takes `rng=`
            gets its own key for every example and step, for dropout or augmentation.
        init_fn: `init_fn(key) -> params`, of any flax or plain JAX model.
        data: the pair (inputs, labels), each with a leading axis [n]; inputs may be a pytree.
        num_teachers: from 2 to n.
        optimizer: any of optax.
        epochs: passes of each teacher over its shard.
        batch_size: examples a step, at most a shard's size.
        key: scalar key: the shards, and each teacher's initialisation, order and losses, come of it.
        at_once: teachers trained by one call of one process; by default what suits the device.
        on_progress: called with the number of finished teachers, as they finish.

    Returns:
        `Teachers`.

    Raises:
        UsageError: for fewer than two teachers, more teachers than records, a batch larger than a shard, numbers out of range, or
            a class whose first record has a loss of NaN before the first step, as one beyond a model's outputs has; and in every
            process, naming what, where they differ in the key, the data or whatever else makes a teacher.

    Warns:
        UserWarning: once, where a shard has no record of some class.

    References:
        Papernot et al., arXiv 1610.05755.
    """

    def of_one_process() -> Ensemble:
        ensemble = Ensemble(loss_fn, init_fn, data, num_teachers, optimizer, epochs, batch_size, key, at_once)
        ensemble.refuse_nan()
        return ensemble

    ensemble = all_well(of_one_process)
    return Teachers(stacked(ensemble.train(range(num_teachers)), on_progress), ensemble.shards)


@dataclass(frozen=True)
class Course:
    """The training of one teacher, the same for all: from its key and its records to its parameters."""

    loss_fn: LossFn
    init_fn: Callable[[Key[Array, ""]], Any]
    optimizer: optax.GradientTransformation
    epochs: int
    batch_size: int
    size: int

    def __post_init__(self) -> None:
        epochs = _checks.count("epochs", self.epochs, "give each teacher's passes over its shard")
        _checks.set_fields(self, epochs=epochs, batch_size=check_batch_size(self.batch_size, self.size))

    def __call__(self, key: Key[Array, ""], records: Any) -> Any:
        """Train one teacher: its records [size, ...] to its parameters."""
        of_init, of_order, of_loss = jax.random.split(key, 3)
        params = self.init_fn(of_init)
        order = positions(of_order, self.size, self.epochs, self.batch_size)

        def mean_loss(params: Params, batch: Batch, keys: Any) -> Any:
            return self.losses(params, batch, keys).mean()

        def step(carry: Any, numbered: Any) -> Any:
            (params, opt_state), (number, at) = carry, numbered
            batch = jax.tree.map(lambda leaf: leaf[at], records)
            keys = jax.random.split(jax.random.fold_in(of_loss, number), self.batch_size)
            grads = for_cpus(jax.grad(mean_loss), params, batch, keys)
            updates, opt_state = self.optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        start = (params, self.optimizer.init(params))
        (params, _), _ = jax.lax.scan(step, start, (jnp.arange(len(order), dtype=jnp.int32), order))
        return params

    def losses(self, params: Params, batch: Batch, keys: Any) -> Any:
        """Of each example, [examples]."""
        with_rng = takes_rng(self.loss_fn)
        one = lambda example, key: self.loss_fn(params, example, **({"rng": key} if with_rng else {}))
        return jax.vmap(one)(batch, keys)


def check_batch_size(batch_size: int, size: int) -> int:
    """A batch that a shard of that size can fill."""
    if (number := _checks.count("batch_size", batch_size, "give the examples a step")) > size:
        raise UsageError(
            f"batch_size={batch_size} exceeds the {size} records of a teacher: give at most {size}, or train fewer teachers"
        )
    return number


class Ensemble:
    """Teachers to be trained: their shards and keys, and the program, which can be asked for any of them in any order."""

    def __init__(
        self,
        loss_fn: LossFn,
        init_fn: Callable[[Key[Array, ""]], Any],
        data: Any,
        num_teachers: int,
        optimizer: optax.GradientTransformation,
        epochs: int,
        batch_size: int,
        key: Key[Array, ""],
        at_once: int | None = None,
        finish: Callable[[Any], Any] = lambda params: params,
    ) -> None:
        _checks.key_with_value(key)
        check_transform(optimizer)
        _checks.function("loss_fn", loss_fn, "give a function of (params, (input, label))")
        _checks.function("init_fn", init_fn, "give a function from a key to parameters")
        examples = check_records(data)
        course = Course(loss_fn, init_fn, optimizer, epochs, batch_size, size_of_shards(examples, num_teachers))
        self._course = course
        self._program = SideBySide(lambda key, records: finish(course(key, records)), at_once)
        of_shards, of_teachers = jax.random.split(own_key(key, Domain.TEACHERS))
        self._data = data
        self.shards = shards(examples, num_teachers, of_shards)
        if is_first():
            warn_of_missing_classes(self.shards, data[1])
        numbers = {"num_teachers": num_teachers, "epochs": epochs, "batch_size": batch_size, "at_once": at_once}
        self._to_agree_on = {"key": key, **numbers, "data": data}
        self._keys = jax.random.split(of_teachers, num_teachers)

    def refuse_nan(self) -> None:
        """Refuse classes whose first record has a loss of NaN: teachers would learn from whatever its gradient is."""
        labels = np.asarray(self._data[1])
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            return
        classes, first = np.unique(labels, return_index=True)
        first = first[:_ROWS]
        of_init, _, of_loss = jax.random.split(self._keys[0], 3)
        records = jax.tree.map(lambda leaf: np.asarray(leaf)[first], self._data)
        losses = jax.jit(lambda *args: for_cpus(self._course.losses, self._course.init_fn(of_init), *args))
        wrong = np.flatnonzero(np.isnan(losses(records, jax.random.split(of_loss, len(first)))))
        if len(wrong):
            raise UsageError(
                f"loss_fn is NaN of a record whose label is {classes[wrong[0]]}: give labels from 0 to one below the number of "
                "the model's outputs, and inputs without NaN"
            )

    def train(self, teachers: Sequence[int]) -> Iterator[Any]:
        """The values of `finish` for these teachers' parameters, on the host, stacked, as many at a time as are trained at once.

        Several processes call it together, and all get all of them; raises `UsageError` where they differ.
        """
        agree_on(**self._to_agree_on)
        return self._program.map(lambda part: (self._keys[part], gathered(self._data, self.shards[part])), teachers)


def predicted_classes(logits_fn: Callable[[Any, Any], Any], inputs: Any) -> Callable[[Any], Int32[Array, " examples"]]:
    """The function from one model's parameters to the classes that it predicts for these inputs; `settled` takes them."""

    def told(logits: Shaped[Array, " classes"]) -> Int32[Array, ""]:
        return jnp.where(jnp.any(jnp.isnan(logits)), DIVERGED, jnp.argmax(logits)).astype(jnp.int32)

    return of_each_input(logits_fn, inputs, told)


def settled(
    classes: Int32[np.ndarray, "teachers examples"],
    fix: str = "give inputs without NaN, or lower the learning rate by which teachers are trained",
) -> Int32[np.ndarray, "teachers examples"]:
    """Votes of all teachers: for class 0 where a teacher's logits are NaN, as `argmax` has it, with a warning."""
    is_nan = classes == DIVERGED
    if (of_all := np.flatnonzero(is_nan.all(axis=0))).size:
        raise UsageError(f"the logits of every teacher are NaN for input {of_all[0]}: {fix}")
    if (wrong := int(is_nan.any(axis=1).sum())) and is_first():
        warnings.warn(
            f"of {len(classes)} teachers, {wrong} have logits of NaN for some inputs, and vote for class 0 there: {fix}",
            stacklevel=2,
        )
    return np.where(is_nan, 0, classes)


def of_each_input(
    logits_fn: Callable[[Any, Any], Any], inputs: Any, told: Callable[[jax.Array], jax.Array]
) -> Callable[[Any], Shaped[Array, "examples *rest"]]:
    """The function from one model's parameters to what is told of its logits for each of these inputs, a part at a time."""
    _checks.function("logits_fn", logits_fn, "give a function of (params, input)")
    examples = check_inputs(inputs)
    rows = min(_ROWS, examples)
    shape = (-(-examples // rows), rows)
    in_parts = lambda leaf: np.resize(leaf, (shape[0] * rows, *np.shape(leaf)[1:])).reshape(*shape, *np.shape(leaf)[1:])
    on_device = jax.device_put(jax.tree.map(in_parts, inputs))

    def of_all(params: Params) -> Shaped[Array, "examples *rest"]:
        forward = lambda params, part: jax.vmap(lambda one: told(real_logits(logits_fn(params, one))))(part)
        parts = jax.lax.map(lambda part: for_cpus(forward, params, part), on_device)
        return parts.reshape(-1, *parts.shape[2:])[:examples]

    return of_all


def real_logits(logits: Any) -> Any:
    """Logits of one input; refuses what has no order, and no classes."""
    if not _checks.is_real(logits) or jnp.ndim(logits) != 1:
        kind = f"{logits.dtype}{list(logits.shape)}" if _checks.is_array(logits) else type(logits).__name__
        raise UsageError(f"logits_fn returned {kind}: return real logits [classes] of one input")
    return logits
