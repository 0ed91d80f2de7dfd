"""Checkpoints by orbax: all that a run needs to go on to the same end, and enough to notice damage or another data set; and the
model that is left of them.

A checkpoint holds the parameters, the states of the optimizer, of the clip rule and of the noise, the keys, the step, the totals
of the unfinished epoch, the records of those before and the ledger. It is written to a temporary folder and renamed, so a kill
leaves the one before. The two newest are kept; a damaged one is passed over for the one before, which leads to the same result.
They are private, and go with the keys when the run is finished; the model has a folder of its own.
"""

import errno
import gc
import hashlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .. import _checks
from .._errors import UsageError
from .._platform import default_device
from .._processes import broadcast, from_first, is_first, several
from .._types import Params
from ..accounting import Ledger
from ..dpsgd._state import TrainState
from ._folder import MAY_NOT_READ, close_to_others
from ._of_one import CheckpointerOfOne

_Read = TypeVar("_Read")
_TREES = ("opt_state", "rule_state", "noise_state")  # of a state, beside its parameters and keys
_TOLD = ("totals", "ledger", "metrics")  # beside the arrays
_CHANGING = ("params", "keys", *_TREES)


class Checkpoint(NamedTuple):
    """A state as it is saved, its ledger with it; the totals so far of the epoch under way; the parameters to predict with, where
    they are not the state's own; and what was recorded of the epochs before."""

    state: TrainState
    totals: dict[str, float]
    model: Any = None
    metrics: Sequence[dict[str, Any]] = ()


class CheckpointFolder:
    """The checkpoints of one run, in `folder`. A context manager, since orbax works in threads of its own."""

    def __init__(self, folder: Path, fingerprint: str | None = None) -> None:
        """Open the folder; `fingerprint` marks what is saved and must be on what is loaded; without one, to read alone."""
        self._folder = folder.absolute()
        self._fingerprint = fingerprint
        try:
            self._checkpointer = _checkpointer(self._folder, keep=2, alone=fingerprint is not None)
        except Exception as error:  # orbax reads every checkpoint's description, and raises what it likes
            raise UsageError(
                f"{self._folder} can't be opened ({_reason(error)}): see that it is a folder to write to, with checkpoints as "
                "they were written; or start the run anew in another folder"
            ) from error

    def __enter__(self) -> "CheckpointFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        failed = None
        with _orbax():
            try:
                self._checkpointer.close()
            except Exception as error:  # what it was still writing
                failed = _reason(error)
            if failed is not None or exception[0] is not None:
                _let_others_end()
        if failed is not None and exception[0] is None:
            raise UsageError(f"{self._folder} can't be written ({failed}): {_fix(failed)}, and go on")

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; returns when it is on disk, and raises `UsageError` where it can't be."""
        if not self._folder.parent.is_dir():  # orbax would make it anew, for others to read
            raise UsageError(
                f"{self._folder.parent} is gone, where the run keeps its checkpoints: where it was moved, go on from there by "
                "--resume"
            )
        state = checkpoint.state
        arrays = here(_arrays(checkpoint))
        told = {"totals": checkpoint.totals, "ledger": state.ledger.to_dict(), "metrics": list(checkpoint.metrics)}
        metadata = {**told, "digest": _digest(arrays, told), "fingerprint": self._fingerprint}
        save = lambda: self._checkpointer.save(state.step, arrays, custom_metadata=metadata, overwrite=True)
        _write(save, f"checkpoint {self._folder / str(state.step)}", "from the one before")
        self._folder.chmod(0o700)
        close_to_others(self._folder / str(state.step))

    def load(self, like: Checkpoint) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that can be read, and a line for each newer one that couldn't.

        Args:
            like: one of the same structure, shapes and dtypes (of its keys the generator is read, of the rest only that).

        Returns:
            (None, []) where there is no checkpoint at all.

        Raises:
            UsageError: where there are checkpoints and none can be read.
        """
        return self._newest(lambda step: self._load_step(step, like))

    def load_model(self, like: Any) -> tuple[Any, int] | None:
        """(parameters to predict with, step) of the newest checkpoint that can be read; None where there is no checkpoint.

        Args:
            like: parameters of the same structure and shapes; nothing needs to be known of the rest of the state.

        Raises:
            UsageError: where there are checkpoints and none can be read.
        """
        return self._newest(lambda step: self._load_model_of_step(step, like))[0]

    def _newest(self, read: Callable[[int], _Read]) -> tuple[_Read | None, list[str]]:
        """The result of `read` for the newest checkpoint that can be read, and a line for each newer one that couldn't."""
        damaged = []
        for step in sorted((found.step for found in self._checkpointer.checkpoints), reverse=True):
            with _orbax():
                try:
                    return read(step), damaged
                except UsageError:
                    raise
                except Exception as error:  # orbax and tensorstore raise what they like on damaged files
                    damaged.append(f"checkpoint {self._folder / str(step)} is damaged ({_reason(error)})")
                _let_others_end()
        if damaged:
            raise UsageError(
                "; ".join(damaged) + ": none can be read, so the run can't go on; start it anew in another folder"
            )
        return None, []

    def _load_model_of_step(self, step: int, like: Any) -> tuple[Any, int]:
        arrays, _ = self._load_arrays(step, None)
        leaves, structure = jax.tree.leaves(arrays.get("model", arrays["params"])), jax.tree.structure(like)
        if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in jax.tree.leaves(like)]:
            raise ValueError("its parameters have other shapes than the model's")
        return jax.tree.unflatten(structure, map(jnp.asarray, leaves)), step

    def _load_arrays(self, step: int, like: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, metadata) as they were saved."""
        with _orbax():
            metadata: Any = self._checkpointer.metadata(step).custom_metadata
            arrays: Any = self._checkpointer.load(step, like)
        if not metadata or metadata.get("digest") != _digest(arrays, {name: metadata.get(name) for name in _TOLD}):
            raise ValueError("its contents don't match their digest")
        return arrays, metadata

    def _load_step(self, step: int, like: Checkpoint) -> Checkpoint:
        arrays, metadata = self._load_arrays(step, _abstract(_arrays(like)))
        if self._fingerprint is not None and metadata.get("fingerprint") != self._fingerprint:
            raise UsageError(
                f"checkpoint {self._folder / str(step)} is of a run with another configuration or other data: the same keys on "
                "other data would let anyone subtract the noise. Bring back the run's own folder, or start another run"
            )
        fresh = like.state
        state = fresh._replace(
            **{name: _restored(getattr(fresh, name), arrays.get(name, {})) for name in _TREES},
            params=jax.tree.map(jnp.asarray, arrays["params"]),
            keys=jax.tree.unflatten(
                jax.tree.structure(fresh.keys),
                [_stored_key(arrays["keys"][name], key) for name, key in fresh.keys._asdict().items()],
            ),
            step=step,
        )
        if state.ledger != Ledger.from_dict(metadata["ledger"]):
            raise UsageError(
                f"checkpoint {self._folder / str(step)} has another ledger than this run after {step} steps: it is of another run"
            )
        return Checkpoint(state, metadata["totals"], arrays.get("model"), metadata["metrics"])


def here(tree: Any) -> Any:
    """This process's own copies of arrays that are whole on each of several devices; others as they are."""
    return jax.tree.map(_here, tree)


def _here(leaf: Any) -> Any:
    several_copies = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1 and leaf.is_fully_replicated
    return leaf.addressable_data(0) if several_copies else leaf


def of_first(checkpoint: Checkpoint) -> Checkpoint:
    """The first process's checkpoint, in every process, to the bit; the others give one of the same structure."""
    if not several():
        return checkpoint
    told = json.loads(from_first(lambda: json.dumps([checkpoint.state.step, checkpoint.totals]).encode()))
    state, model = jax.tree.map(
        _of_first, ({name: getattr(checkpoint.state, name) for name in _CHANGING}, checkpoint.model)
    )
    return Checkpoint(checkpoint.state._replace(**state, step=told[0]), told[1], model)


def _of_first(leaf: Any) -> Any:
    words = np.asarray(_checks.words(leaf))
    content = broadcast(words.tobytes() if is_first() else b"")
    return _stored_key(np.frombuffer(content, words.dtype).reshape(words.shape), leaf)


def save_model(folder: Path, params: Params, step: int) -> None:
    """Write the final model, all or nothing: parameters alone, nothing of the data and no keys.

    Args:
        folder: of the model.
        params: its parameters.
        step: after how many steps they are.

    Raises:
        UsageError: where it can't be written.
    """
    arrays = {"params": params}

    def save() -> None:
        with closing(_checkpointer(folder.absolute(), keep=1, alone=True)) as checkpointer:
            checkpointer.save(step, arrays, custom_metadata={"digest": _digest(arrays)}, overwrite=True)

    _write(save, f"the model in {folder}", "by --resume")


def load_model(folder: Path, like: Any) -> tuple[Any, int] | None:
    """(parameters, step) of the model in a folder; None where there is none.

    Args:
        folder: of the model.
        like: parameters of the same structure, shapes and dtypes.

    Raises:
        UsageError: where it can't be read.
    """
    if not folder.exists():
        return None
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UsageError(f"the model in {folder} can't be read (Permission denied): {MAY_NOT_READ}")
    try:
        with _orbax(), closing(_checkpointer(folder.absolute(), keep=1, alone=False)) as checkpointer:
            try:
                return _newest_model(checkpointer, like)
            except Exception as error:  # orbax and tensorstore raise what they like on damaged files
                reason = _reason(error)
            _let_others_end()
    except Exception as error:  # it reads the model's description first, too
        reason = _reason(error)
    raise UsageError(f"the model in {folder} is damaged ({reason}): bring back the folder, or train anew")


def _newest_model(checkpointer: Any, like: Any) -> tuple[Any, int] | None:
    steps = [found.step for found in checkpointer.checkpoints]
    if not steps:
        return None
    arrays = checkpointer.load(max(steps), _abstract({"params": like}))
    metadata = checkpointer.metadata(max(steps)).custom_metadata
    if not metadata or metadata.get("digest") != _digest(arrays):
        raise ValueError("its contents don't match their digest")
    return jax.tree.map(jnp.asarray, arrays["params"]), max(steps)


def _checkpointer(path: Path, *, keep: int, alone: bool) -> Any:
    """Of the newest so many; `alone` in the folder, it clears away what a kill left half done."""
    from orbax.checkpoint import v1 as ocp

    if jax.process_count() > 1:  # whatever this one does by itself
        with _orbax():
            return CheckpointerOfOne(path, keep=keep, alone=alone)
    newest = ocp.training.preservation_policies.LatestN(keep)
    with _orbax():  # orbax takes any path, and declares its own
        return ocp.training.Checkpointer(
            path,  # pyright: ignore[reportArgumentType]
            preservation_policy=newest,  # pyright: ignore[reportArgumentType]
            cleanup_tmp_directories=alone,
        )


def _abstract(arrays: Any) -> Any:
    """Their shapes and types, and where they are to be: where they are, or on the default device."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_place(leaf)), arrays)


def _place(leaf: Any) -> Any:
    return getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(default_device())


def _arrays(checkpoint: Checkpoint) -> dict[str, Any]:
    """Arrays for orbax: trees without empty branches, which it refuses; what isn't parameters by its leaves' positions."""
    state = checkpoint.state
    arrays = {"params": state.params, "keys": {name: _checks.words(key) for name, key in state.keys._asdict().items()}}
    for name in _TREES:
        if leaves := jax.tree.leaves(getattr(state, name)):
            arrays[name] = {f"{i:06d}": _checks.words(leaf) for i, leaf in enumerate(leaves)}
    return arrays if checkpoint.model is None else {**arrays, "model": checkpoint.model}


def _restored(like: Any, stored: dict[str, Any]) -> Any:
    """A tree of the structure of `like` from its leaves."""
    leaves = [
        _stored_key(leaf, one) for (_, leaf), one in zip(sorted(stored.items()), jax.tree.leaves(like), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _stored_key(leaf: Any, like: Any) -> Any:
    """The inverse of `_checks.words`: a key of the same generator as `like`, or an array."""
    array = jnp.asarray(leaf)
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like)) if _checks.is_key(like) else array


def _digest(arrays: Any, told: Any = None) -> str:
    """Of arrays, and of what is told beside them in JSON."""
    digest = hashlib.sha256(b"" if told is None else json.dumps(told, sort_keys=True).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _write(save: Callable[[], Any], what: str, go_on: str) -> None:
    """Have orbax write something, or raise `UsageError`."""
    failed = None
    with _orbax():
        try:
            save()
        except Exception as error:  # orbax and tensorstore raise what they like on a disk that is full
            failed = _reason(error)
        if failed is not None:
            _let_others_end()
    if failed is not None:
        raise UsageError(f"{what} can't be written ({failed}): {_fix(failed)}, and go on {go_on}")


def _fix(reason: str) -> str:
    many_files = os.strerror(errno.EMFILE) in reason
    return "let a process have more files open (ulimit -n)" if many_files else "see that there is room"


def _let_others_end() -> None:
    """Of what fails beside the first, threads and asyncio tell as they end and are collected: here, unheard."""
    time.sleep(0.2)
    gc.collect()


def _reason(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).splitlines()[0][:200] if str(error).strip() else type(error).__name__


@contextmanager
def _orbax() -> Iterator[None]:
    """Orbax warns of things that don't concern a run on one host, and logs what it raises as well; both are kept quiet."""
    silent_below, told = logging.root.manager.disable, sys.unraisablehook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        sys.unraisablehook = lambda _: None
        try:
            yield
        finally:
            logging.disable(silent_below)
            sys.unraisablehook = told
