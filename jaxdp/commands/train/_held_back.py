"""What the loss on examples held back decides: when a run ends, when its learning rate falls, which epoch's model is kept.

All of it follows from the losses after each epoch, so that a run that is gone on with decides alike. To the training examples it
costs nothing: what is decided is computed from parameters that are private already, and ε is that of all steps. The examples held
back are not protected from it.
"""

import functools
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

from ..._errors import UsageError
from ..._types import Params
from ...dpsgd._state import TrainState
from ...runs._checkpoint import load_model, save_model
from ...runs._folder import RunFolder
from ._options import TrainOptions

_SCALE = "plateau_scale"
_COMPILED_FOR = 256  # epochs


def best_of(losses: Sequence[float]) -> int:
    """The place of the least loss, the first of several; of a NaN only where there is nothing else."""
    return int(np.argmin(np.nan_to_num(np.asarray(losses, np.float64), nan=np.inf, posinf=np.inf)))


def has_stopped(losses: Sequence[float], patience: int | None) -> bool:
    """Whether the loss has been no better for `patience` epochs."""
    return patience is not None and bool(losses) and len(losses) - 1 - best_of(losses) >= patience


def scale_after(losses: Sequence[float], options: TrainOptions) -> float:
    """The factor of the learning rate after epochs of these losses, as optax reduces it on a plateau."""
    padded = np.pad(np.asarray(losses, np.float32), (0, _COMPILED_FOR - len(losses) % _COMPILED_FOR))
    return float(_scale_after(options.plateau_factor, options.plateau_patience)(padded, len(losses)))


@functools.cache
def _scale_after(factor: float, patience: int) -> Callable[..., jax.Array]:
    """Of the first so many of an array of losses, compiled: one after another, optax's updates would take as long as an epoch."""
    plateau = optax.contrib.reduce_on_plateau(factor=factor, patience=patience)
    after = lambda losses: lambda i, state: plateau.update({}, state, value=losses[i])[1]
    return jax.jit(lambda losses, count: jax.lax.fori_loop(0, count, after(losses), plateau.init({})).scale)


def with_scale(state: TrainState, scale: float) -> TrainState:
    """The state whose optimizer goes on with the learning rate times `scale`."""
    old = optax.tree_utils.tree_get(state.opt_state, _SCALE)
    new = jax.device_put(np.full(old.shape, scale, old.dtype), old.sharding)
    return state._replace(opt_state=optax.tree_utils.tree_set(state.opt_state, plateau_scale=new))


def keep_if_best(folder: RunFolder, params: Params) -> None:
    """Keep the last epoch's model where its loss is the least so far; those before it, until it is safe."""
    records = folder.metrics()
    if _best(records) is records[-1]:
        save_model(folder.best / str(records[-1]["epoch"]), params, records[-1]["step"])


def forget_others(folder: RunFolder) -> None:
    """Erase the models of epochs that aren't the best, once a checkpoint knows of it."""
    best = _best(folder.metrics())["epoch"]
    for each in folder.best.glob("*"):
        if each.name != str(best):
            shutil.rmtree(each)


def best_model(folder: RunFolder, like: Params, records: Sequence[dict[str, Any]]) -> tuple[Params, dict[str, Any]]:
    """The model of the epoch with the least loss, and that epoch's record; raises `UsageError` where it is gone."""
    record = _best(records)
    found = load_model(folder.best / str(record["epoch"]), like)
    if found is None:
        raise UsageError(
            f"{folder.best} has no model of epoch {record['epoch']}, the best by --keep best: the run's folder is damaged; start "
            "the run anew"
        )
    return found[0], record


def _best(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of the epoch with the least loss."""
    return records[best_of([record["test_loss"] for record in records])]


def in_words(options: TrainOptions, summary: dict[str, Any], asked: int) -> list[str]:
    """The sentences of a statement about what was decided so."""
    said, falls = [], options.schedule == "plateau"
    if options.patience is not None:
        said.append(
            f"{summary['steps']} of these {asked} steps were made: the run ended when the loss on examples held back had not "
            f"improved for {options.patience} epochs, or would have."
        )
    if falls:
        said.append(
            f"The learning rate was multiplied by {options.plateau_factor:g} when the loss on examples held back had not "
            f"improved for {options.plateau_patience} epochs."
        )
    if options.keep == "best":
        said.append(
            f"The model is that of epoch {summary['kept_epoch']}, after which the loss on examples held back was least."
        )
    if said:
        said.append(
            f"Epsilon is that of all {asked} steps, since that depended on what was seen. The examples held back are not among "
            "those it protects: they chose."
        )
    return said
