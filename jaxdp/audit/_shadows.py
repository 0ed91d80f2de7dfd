"""Shadow models: trained side by side, as PATE's teachers are, each on another half of the examples in question."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int32, Key

from .. import _checks
from .._errors import UsageError
from .._processes import all_well
from .._types import LossFn, Params
from ..clipping._inputs import taking_rng_as
from ..noise._keys import Domain, own_key
from ..pate._agreement import agree_on
from ..pate._shards import check_records
from ..pate._side_by_side import SideBySide, stacked
from ..pate._teachers import Course, of_each_input
from ..transforms import check_transform

_MOST = 2**16


@dataclass(frozen=True)
class Shadows:
    """Shadow models, their parameters stacked.

    Attributes:
        params: like those of one model, with a leading axis [shadows].
        candidates: int32 [candidates], the rows of the data that each was trained on or not.
        members: bool [shadows, candidates], whether it was: two models after another have opposite halves, so that each candidate
            is in the data of half of them, one that is left over where they are odd in those of none.
    """

    params: Params
    candidates: Int32[np.ndarray, " candidates"]
    members: Bool[np.ndarray, "shadows candidates"]

    def logits(
        self, logits_fn: Callable[[Any, Any], Any], inputs: Any
    ) -> Float[np.ndarray, "shadows examples classes"]:
        """What each model says of each input, for `jaxdp.audit.confidence`.

        Several processes call it together, with the same arguments, and all get all logits.

        Args:
            logits_fn: `logits_fn(params, input) -> [classes]`, for one input.
            inputs: a pytree with a leading axis [examples], such as the candidates'.

        Returns:
            float32 [shadows, examples, classes].

        Raises:
            UsageError: for inputs without a common leading axis; and in every process, where they differ in the models or the
                inputs.
        """
        as_they_are = lambda logits: logits.astype(jnp.float32)
        program = all_well(lambda: SideBySide(of_each_input(logits_fn, inputs, as_they_are)))
        agree_on(shadows=self.params, inputs=inputs)
        params_of = lambda shadows: (jax.tree.map(lambda leaf: leaf[shadows], self.params),)
        return np.concatenate([*program.map(params_of, range(len(self.members)))])


def train_shadows(
    loss_fn: LossFn,
    init_fn: Callable[[Key[Array, ""]], Any],
    data: Any,
    *,
    num_shadows: int,
    optimizer: optax.GradientTransformation,
    epochs: int,
    batch_size: int,
    key: Key[Array, ""],
    candidates: Any = None,
    at_once: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Shadows:
    """Train models on random halves of the examples in question, and on all others, by one compiled program.

    Several processes call it together, with the same arguments, as they call `jaxdp.pate.train_teachers`.

    They show what a model looks like that was trained on an example, and one that wasn't: for `jaxdp.audit.lira_scores`. An
    attack is the stronger the more they are like the model that it attacks.

    Args:
        loss_fn: `loss_fn(params, (input, label)) -> scalar` for one example, as for `jaxdp.clipped_grad`; one that takes `rng=`
            gets its own key for every example and step.
        init_fn: `init_fn(key) -> params`, of any flax or plain JAX model.
        data: the pair (inputs, labels), each with a leading axis [n]; inputs may be a pytree.
        num_shadows: an even number, 4 or more; 64 and more where each example is to have variances of its own.
        optimizer: any of optax.
        epochs: passes of each model over its data.
        batch_size: examples a step, at most the size of a model's data.
        key: scalar key: the halves, and each model's initialisation, order and losses, come of it.
        candidates: int [candidates], rows of the data, each once, of which each model has half; all rows if not given.
        at_once: models trained by one call; by default what suits the device.
        on_progress: called with the number of finished models, as they finish.

    Returns:
        `Shadows`.

    Raises:
        UsageError: for an odd number of models or fewer than four, fewer than two candidates or rows that aren't there, a batch
            larger than a model's data, or numbers out of range; and in every process, naming what, where they differ.

    References:
        Shokri et al., arXiv 1610.05820; Carlini et al., arXiv 2112.03570.

    Examples:
        >>> loss = lambda params, example: (params * example[0] - example[1]) ** 2
        >>> data = np.arange(8.0), np.arange(8.0)
        >>> shadows = train_shadows(
        ...     loss, lambda key: jnp.ones(()), data, num_shadows=4, optimizer=optax.sgd(0.1), epochs=1, batch_size=2,
        ...     key=jax.random.key(0))
        >>> shadows.members.sum(axis=0).tolist()
        [2, 2, 2, 2, 2, 2, 2, 2]
    """
    if on_progress is not None:
        _checks.function("on_progress", on_progress, "give a function of the number of finished models")
    prepared = lambda: _prepared(
        loss_fn, init_fn, data, num_shadows, optimizer, epochs, batch_size, key, candidates, at_once
    )
    program, keys, rows, chosen, members = all_well(prepared)
    agree_on(key=key, data=data, candidates=chosen)
    parts = program.map(lambda shadows: (keys[shadows], rows[shadows]), range(len(rows)))
    return Shadows(stacked(parts, on_progress), chosen, members)


def _prepared(
    loss_fn: LossFn,
    init_fn: Callable[[Key[Array, ""]], Any],
    data: Any,
    num_shadows: int,
    optimizer: optax.GradientTransformation,
    epochs: int,
    batch_size: int,
    key: Key[Array, ""],
    candidates: Any,
    at_once: int | None,
) -> tuple[SideBySide, Any, np.ndarray, np.ndarray, np.ndarray]:
    """The program of a model, each one's key and rows, the candidates, and who of them is in whose data."""
    _checks.key_with_value(key)
    check_transform(optimizer)
    _checks.function("loss_fn", loss_fn, "give a function of (params, (input, label))")
    _checks.function("init_fn", init_fn, "give a function from a key to parameters")
    examples = check_records(data)
    chosen = _checked_candidates(candidates, examples)
    number = _checks.count("num_shadows", num_shadows, "give an even number of models, 4 or more")
    if not 4 <= number <= _MOST or number % 2:
        raise UsageError(
            f"num_shadows={num_shadows} must be even, from 4 to {_MOST}: two after another have opposite halves"
        )
    always = np.setdiff1d(np.arange(examples, dtype=np.int32), chosen)
    size = len(always) + len(chosen) // 2
    on_host = lambda leaf: np.asarray(_checks.array("data", leaf, "give arrays of numbers"))
    on_device = jax.device_put(jax.tree.map(on_host, data))  # wherever it was laid out before
    row_of = lambda row: jax.tree.map(lambda leaf: leaf[row], on_device)
    by_row = taking_rng_as(loss_fn, lambda params, row, **rng: loss_fn(params, row_of(row), **rng))
    program = SideBySide(Course(by_row, init_fn, optimizer, epochs, batch_size, size), at_once)
    of_halves, of_models = jax.random.split(own_key(key, Domain.SHADOWS))
    members = _halves(of_halves, number, len(chosen))
    rows = np.stack([np.concatenate([always, chosen[of_one]]) for of_one in members])
    keys = jax.random.split(of_models, number)
    return program, keys, rows, chosen, members


def _halves(key: Key[Array, ""], shadows: int, candidates: int) -> Bool[np.ndarray, "shadows candidates"]:
    """Random halves and, each after its own, the opposite ones."""
    orders = jax.vmap(lambda one: jax.random.permutation(one, candidates))(jax.random.split(key, shadows // 2))
    half = candidates // 2
    members = np.zeros((shadows // 2, 2, candidates), bool)
    for pair, order in zip(members, np.asarray(orders), strict=True):
        pair[0, order[:half]] = pair[1, order[half : 2 * half]] = True
    return members.reshape(shadows, candidates)


def _checked_candidates(candidates: Any, examples: int) -> Int32[np.ndarray, " candidates"]:
    fix = "give rows of the data, each once, two or more"
    rows = np.arange(examples) if candidates is None else np.asarray(_checks.array("candidates", candidates, fix))
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer) or len(rows) < 2:
        raise UsageError(f"candidates are {rows.dtype}{list(rows.shape)}: {fix}")
    if not 0 <= rows.min() <= rows.max() < examples or len(np.unique(rows)) < len(rows):
        raise UsageError(
            f"candidates are {len(rows)} rows from {rows.min()} to {rows.max()}, of data with {examples}, or not each once: {fix}"
        )
    return np.sort(rows).astype(np.int32)
