"""The records of a run's draws, read ahead of the steps that want them."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Integer

from .. import _checks
from .._errors import UsageError
from ._parts import Block, Parts
from ._source import Source

_ORDER = "ask for all blocks of each step, in order; to begin elsewhere, make a Reader with first="


class Reader:
    """Reads the records of each step's draw, block by block, in threads of Grain's.

        with Reader(source, draw, block=64, most=400, first=0, steps=run.steps) as reader:
            for step in range(run.steps):
                for block in reader.blocks(step): ...

    Reading begins at once. What it reads next is a function of the step alone, so to go on with a run is to begin at its step.

    Args:
        source: what is read.
        draw: from a step to the indices of the examples drawn, in order; there may be none. It is called once a step, a few
            steps ahead, by a thread that reads: settings of JAX's that a `with` makes where the reader is made don't hold there.
        block: rows of a block.
        most: a number of examples that a draw seldom exceeds. One that does is read whole, in one thread.
        first: the step to begin with.
        steps: how many are to be read.
        places: ascending whole numbers below `block`: which rows of each block are read here, where other processes read the
            others. All of them by default.

    Raises:
        UsageError: before anything is read ahead, for arguments of another kind and a source without numbers.
    """

    def __init__(
        self,
        source: Source,
        draw: Callable[[int], Any],
        *,
        block: int,
        most: int,
        first: int,
        steps: int,
        places: Integer[np.ndarray, " rows"] | None = None,
    ) -> None:
        _checks.instance("source", source, Source, "give jaxdp.reading.Source(records)")
        _checks.function("draw", draw, "give a function from a step to the indices drawn at it")
        block = _checks.count("block", block, "give the number of rows of a block")
        most = _checks.count("most", most, "give a number of examples that a draw seldom exceeds")
        self._step = _checks.step("first", first)
        self._end = self._step + _checks.step("steps", steps)
        own = _check_places(places, block)
        ahead = source.blocks_ahead(len(own))  # which reads record 0
        parts = Parts(source, draw, block=block, most=most, steps=self._end, places=own)
        self._parts, self._iterator = parts, _iterate(parts, source.threads, ahead, self._step)
        self._part = 0  # the next one of the step
        self._blocks_read: deque[Block] = deque()
        self._under_way = self._closed = False
        self._waited = 0.0

    @property
    def waited(self) -> float:
        """Seconds that `blocks` has waited for reading so far."""
        return self._waited

    def blocks(self, step: int) -> Iterator[Block]:
        """The blocks of a step's draw, in order: one for every `block` examples drawn or a part of them; none where none are.

        Raises:
            UsageError: where it isn't the turn of that step, and for a record that can't be read, is of another kind than the
                first, or a source that has another length by now. Reading ends with it: a new `Reader` can begin at that step.
        """
        step = _checks.step("step", step)
        if self._closed:
            raise UsageError(f"step={step} can't be read, for {_closed(step)}")
        if self._under_way and self._another():
            self._stop()
            raise UsageError(f"step={step} is asked for, and not all blocks of step {self._step} were taken: {_ORDER}")
        if self._under_way:
            self._step, self._part, self._under_way = self._step + 1, 0, False
        if step != self._step or step >= self._end:
            turn = f"step {self._step} is next" if self._step < self._end else f"there are {self._end} steps"
            raise UsageError(f"step={step} is asked for, and {turn}: {_ORDER}")
        self._under_way = True
        return self._blocks(step)

    def _blocks(self, step: int) -> Iterator[Block]:
        while self._step == step and self._another():
            yield self._blocks_read.popleft()

    def _another(self) -> bool:
        """Whether there is another block of the step under way, which is then there."""
        while not self._blocks_read and self._part < self._parts.of_a_step:
            self._blocks_read.extend(self._next_part())
            self._part += 1
        return bool(self._blocks_read)

    def _next_part(self) -> tuple[Block, ...]:
        if self._closed:
            raise UsageError(f"step {self._step} can't be read on, for {_closed(self._step)}")
        began = time.perf_counter()
        try:
            return next(self._iterator)
        except BaseException:  # of Ctrl-C, too: the part that was waited for is lost
            self._stop()
            raise
        finally:
            self._waited += time.perf_counter() - began

    def close(self) -> None:
        """End all threads, and wait for them: then nothing reads the source any more."""
        self._stop()
        self._parts.join()

    def _stop(self) -> None:
        self._closed = True
        self._parts.stop()
        self._iterator.close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_iterator"):
            self._stop()  # without waiting, for this may be any thread


def _closed(step: int) -> str:
    return f"the reader was closed, or ended by an error: make a new one with first={step}"


def _iterate(parts: Parts, threads: int, ahead: int, first: int) -> Any:
    """Grain's iterator over `parts`, which has begun to read at step `first`."""
    import grain  # which takes a while

    options = grain.ReadOptions(num_threads=min(threads, ahead), prefetch_buffer_size=ahead)
    iterator = iter(grain.MapDataset.source(parts).to_iter_dataset(options))
    iterator.set_state({"next_index": first * parts.of_a_step})
    iterator.start_prefetch()
    return iterator


def _check_places(places: Any, block: int) -> Integer[np.ndarray, " rows"]:
    if places is None:
        return np.arange(block)
    given = np.asarray(_checks.array("places", places, "give whole numbers below block, or leave it out"))
    whole = given.ndim == 1 and given.size and np.issubdtype(given.dtype, np.integer)
    if not whole or given[0] < 0 or given[-1] >= block or not (given[1:] > given[:-1]).all():
        raise UsageError(f"places={given!r:.200} is no ascending list of whole numbers from 0 to {block - 1}")
    return given.astype(np.int64)
