"""Checkpoints that one of several processes writes and reads, as orbax has them where there is one process alone.

Orbax's `training.Checkpointer` waits for all processes, and wants them all to see the folder. Its older manager, on which that
one is built, can be told of those that take part; it writes the same files.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class _Found(NamedTuple):
    step: int


class CheckpointerOfOne:
    """What `training.Checkpointer` does, in this process alone; arrays are read as NumPy's."""

    def __init__(self, path: Path, *, keep: int, alone: bool) -> None:
        from orbax import checkpoint as ocp

        self._orbax: Any = ocp
        own = jax.process_index()
        processes = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
        path.mkdir(parents=True, exist_ok=True)  # which orbax does for all processes alone
        self._manager: Any = ocp.CheckpointManager(
            path,
            options=ocp.CheckpointManagerOptions(
                create=False,
                max_to_keep=keep,
                cleanup_tmp_directories=alone,
                enable_async_checkpointing=False,
                multiprocessing_options=processes,
            ),
            item_handlers={"state": ocp.PyTreeCheckpointHandler(multiprocessing_options=processes)},
        )

    @property
    def checkpoints(self) -> list[_Found]:
        """Those that are there."""
        return [_Found(step) for step in sorted(self._manager.all_steps())]

    def save(self, step: int, arrays: Any, *, custom_metadata: dict[str, Any], overwrite: bool) -> None:
        """Write one; returns when it is on disk."""
        if overwrite and step in self._manager.all_steps():
            self._manager.delete(step)
        args = self._orbax.args
        saved = args.Composite(state=args.PyTreeSave(jax.tree.map(np.asarray, arrays)))
        self._manager.save(step, args=saved, custom_metadata=custom_metadata, force=True)
        self._manager.wait_until_finished()

    def load(self, step: int, like: Any) -> Any:
        """What was saved, of the structure of `like`, or of its own where that is None."""
        tree = self._manager.item_metadata(step)["state"].tree if like is None else like
        args = self._orbax.args
        as_numpy = jax.tree.map(lambda _: self._orbax.RestoreArgs(restore_type=np.ndarray), tree)
        wanted = args.PyTreeRestore(like, restore_args=as_numpy)
        return self._manager.restore(step, args=args.Composite(state=wanted))["state"]

    def metadata(self, step: int) -> Any:
        """Of one, with its `custom_metadata`."""
        return self._manager.metadata(step)

    def close(self) -> None:
        """End its threads."""
        self._manager.close()
