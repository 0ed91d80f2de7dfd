"""The student: learns the teachers' answers, and in what way the other public examples look alike.

With labels for a few hundred of thousands of public examples, most of what there is to learn is in the unlabelled ones. FixMatch
asks for consistency: where the student, averaged over its last steps, is confident of what it sees in a mildly distorted
example, that is the label of the same example strongly distorted. `method="supervised"` uses the answers alone.

What a student is made of has been paid for by the answers: training it costs no privacy, however long it takes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from .. import _checks
from .._errors import UsageError
from .._mesh import on_no_explicit_mesh
from .._types import Params
from ..dpsgd._state import RunKeys, StepMetrics, TrainState
from ..noise._keys import Domain, own_key
from ..transforms import check_transform
from ._shards import check_inputs

METHODS = ("fixmatch", "supervised")
Distort = Callable[[Key[Array, ""], Any], Any]


class StudentStep:
    r"""`init`, and `many` steps of a student, whose parameters are the pair of the last ones and of their running mean.

    The loss is \(\tfrac1B\sum_b H(y_b, f(w(x_b))) + \tfrac1U\sum_u [\max \bar p_u \ge \tau] H(\arg\max \bar p_u, f(s(x_u)))\): w
    and s distort mildly and strongly, \(\bar p_u\) are the running mean's probabilities for \(w(x_u)\).

    Args:
        logits_fn: `logits_fn(params, input) -> [classes]`, for one input.
        optimizer: any of optax.
        labels: integers [n], -1 where there is no answer.
        method: "fixmatch", or "supervised" for the first term alone.
        batch_size: B, answered examples a step.
        unlabelled_batch_size: U, public examples a step.
        confidence: τ.
        decay: of the running mean.
        mildly: `mildly(key, input)`, w; "supervised" may go without.
        strongly: `strongly(key, input)`, s; likewise.

    Raises:
        UsageError: for labels of which none is an answer, an unknown method, "fixmatch" without distortions, and numbers out of
            range.

    References:
        Sohn et al., "FixMatch", arXiv 2001.07685; the running mean is that of Tarvainen and Valpola, arXiv 1703.01780.
    """

    def __init__(
        self,
        logits_fn: Callable[[Any, Any], Any],
        optimizer: optax.GradientTransformation,
        labels: Any,
        *,
        mildly: Distort | None = None,
        strongly: Distort | None = None,
        method: str = "fixmatch",
        batch_size: int = 64,
        unlabelled_batch_size: int = 192,
        confidence: float = 0.95,
        decay: float = 0.99,
    ) -> None:
        _checks.one_of("method", method, METHODS)
        check_transform(optimizer)
        if method == "fixmatch" and (mildly is None or strongly is None):
            raise UsageError(
                "method='fixmatch' compares what the student sees in an input distorted mildly and strongly: give mildly and "
                "strongly, functions of (key, input); or method='supervised', which needs neither"
            )
        mildly, strongly = (_as_it_is if distort is None else distort for distort in (mildly, strongly))
        for name, value in {"logits_fn": logits_fn, "mildly": mildly, "strongly": strongly}.items():
            _checks.function(name, value, "give a function that can be compiled")
        _checks.non_negative("confidence", confidence, "give a probability, such as 0.95; above 1 nothing is believed")
        if _checks.non_negative("decay", decay, "give a number from 0 to 1") > 1:
            raise UsageError(f"decay={decay} must lie between 0 and 1: 0.99 is usual")
        self._logits = jax.vmap(logits_fn, in_axes=(None, 0))
        self._optimizer = optimizer
        self._mildly, self._strongly = jax.vmap(mildly), jax.vmap(strongly)
        self._batch_size = _checks.count("batch_size", batch_size, "give the answered examples a step")
        size = _checks.count("unlabelled_batch_size", unlabelled_batch_size, "give the public examples a step")
        self._unlabelled = size if method == "fixmatch" else 0
        self._confidence, self._decay = confidence, decay
        self._answered, self._labels = check_labels(labels)
        self._compiled = jax.jit(self._one_step, donate_argnums=(0, 1))

    def init(self, params: Params, key: Key[Array, ""]) -> TrainState:
        """The state before the first step."""
        copy = lambda: jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
        return TrainState((copy(), copy()), self._optimizer.init(params), RunKeys.split_from(key), 0)

    def many(self, state: TrainState, data: Any, *, num_steps: int) -> tuple[TrainState, StepMetrics]:
        """`num_steps` steps on the public inputs `data`; the metrics are stacked [num_steps].

        The metrics' `correct` is the part of the answered examples on which the student agrees with the answer.
        """
        params, opt_state, metrics = state.params, state.opt_state, []
        for number in range(state.step, state.step + num_steps):
            params, opt_state, metric = self._compiled(params, opt_state, state.keys.loss, jnp.int32(number), data)
            metrics.append(metric)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *metrics)
        return state._replace(params=params, opt_state=opt_state, step=state.step + num_steps), stacked

    def _one_step(self, both: Any, opt_state: Any, key: Any, number: Any, data: Any) -> tuple[Any, Any, StepMetrics]:
        params, mean = both
        of_rows, of_others, of_mild, of_weak, of_strong = jax.random.split(jax.random.fold_in(key, number), 5)
        at = jax.random.randint(of_rows, (self._batch_size,), 0, len(self._answered))
        pick = lambda rows: jax.tree.map(lambda leaf: leaf[rows], data)
        known = self._mildly(jax.random.split(of_mild, self._batch_size), pick(jnp.asarray(self._answered)[at]))
        targets, weights = jnp.asarray(self._labels)[at], jnp.ones(self._batch_size) / self._batch_size
        seen = known
        if self._unlabelled:
            others = pick(jax.random.randint(of_others, (self._unlabelled,), 0, len(jax.tree.leaves(data)[0])))
            weak = self._mildly(jax.random.split(of_weak, self._unlabelled), others)
            believed = jax.nn.softmax(self._logits(mean, weak))
            strong = self._strongly(jax.random.split(of_strong, self._unlabelled), others)
            both_parts = lambda first, second: jnp.concatenate([first, second])
            seen = jax.tree.map(both_parts, known, strong)
            targets = both_parts(targets, jnp.argmax(believed, axis=1).astype(targets.dtype))
            sure = (jnp.max(believed, axis=1) >= self._confidence) / self._unlabelled
            weights = both_parts(weights, sure.astype(weights.dtype))

        def loss_of(params: Params) -> tuple[Any, Any]:
            logits = self._logits(params, seen)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
            return jnp.sum(weights * losses), jnp.argmax(logits[: self._batch_size], axis=1)

        (loss, predicted), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = self._optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        decay = jnp.minimum(self._decay, (number + 1) / (number + 10))
        mean = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, mean, params)
        correct = jnp.mean(predicted == targets[: self._batch_size])
        return (params, mean), opt_state, StepMetrics(jnp.int32(self._batch_size), loss, jnp.float32(0), correct)


def train_student(
    logits_fn: Callable[[Any, Any], Any],
    init_fn: Callable[[Key[Array, ""]], Any],
    inputs: Any,
    labels: Any,
    *,
    optimizer: optax.GradientTransformation,
    steps: int,
    key: Key[Array, ""],
    **how: Any,
) -> Any:
    """Train a student on public examples and the teachers' answers.

    Args:
        logits_fn: `logits_fn(params, input) -> [classes]`, for one input.
        init_fn: `init_fn(key) -> params`.
        inputs: the public examples, a pytree with a leading axis [n].
        labels: integers [n], -1 where there is no answer: `Labels.labels`, filled up with -1 for what was not asked.
        optimizer: any of optax.
        steps: how many.
        key: scalar key.
        **how: `mildly` and `strongly`, which distort an input by a key (under `method="supervised"` they may be left out), and
            what else `StudentStep` takes.

    Returns:
        The parameters, averaged over the last steps.

    Raises:
        UsageError: for labels that don't fit the inputs or the logits or of which none is an answer, and numbers out of range.

    References:
        Sohn et al., arXiv 2001.07685.
    """
    _checks.key(key)
    number = _checks.count("steps", steps, "give the student's steps")
    _checks.function("init_fn", init_fn, "give a function from a key to parameters")
    of_init, of_steps = jax.random.split(own_key(key, Domain.STUDENT))
    examples = check_inputs(inputs)
    if np.shape(labels) != (examples,):
        raise UsageError(
            f"labels have shape {np.shape(labels)} for {examples} inputs: give one a row, -1 for no answer"
        )
    step = StudentStep(logits_fn, optimizer, labels, **how)
    params = init_fn(of_init)
    logits = jax.eval_shape(logits_fn, params, jax.tree.map(lambda leaf: leaf[0], inputs))
    if getattr(logits, "ndim", None) != 1 or logits.shape[0] <= np.max(labels):
        raise UsageError(
            f"labels go up to {np.max(labels)}, and logits_fn returned {logits} for one input: return [classes], with a place "
            "for each class from 0"
        )
    state = step.init(params, of_steps)
    on_device = jax.device_put(jax.tree.map(on_no_explicit_mesh, inputs))
    for _ in range(number):
        state, _ = step.many(state, on_device, num_steps=1)
    return state.params[1]


def _as_it_is(key: Key[Array, ""], x: Any) -> Any:
    return x


def check_labels(labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """(rows, labels) of the answered examples, int32; refuses labels of which none is an answer."""
    given = np.asarray(labels)
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
        raise UsageError(
            f"labels have shape {given.shape} and dtype {given.dtype}: give whole numbers [n], -1 for no answer"
        )
    if given.size and given.max() > np.iinfo(np.int32).max:
        raise UsageError(f"labels hold {given.max()}, which is no int32: give classes from 0, and -1 for no answer")
    rows = np.flatnonzero(given >= 0)
    if not len(rows):
        raise UsageError("labels hold no answer, all are negative: ask more, or lower the threshold")
    return rows.astype(np.int32), given[rows].astype(np.int32)
