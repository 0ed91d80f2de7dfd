"""The draws of a run, cut into parts that can be read in any order: what Grain's threads read."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from ._source import Source, Stopped


class Block(NamedTuple):
    """Some rows of a draw.

    Attributes:
        rows: pytree of arrays [len(places), ...], zeros where nothing was drawn.
        start: the place in the draw of the block's first row, whether that is among the rows or not.
    """

    rows: Any
    start: int


class Parts:
    """A sequence for Grain: element e is the blocks of part e % `of_a_step` of the draw of step e // `of_a_step`.

    Grain must know how many elements there are, and nobody knows how many examples will be drawn. So a draw has as many parts as
    its usual size has blocks: each but the last is one block, or none where fewer are drawn, and the last is all the rest,
    however many. No draw is ever cut.
    """

    def __init__(
        self,
        source: Source,
        draw: Callable[[int], Integer[np.ndarray, " m"]],
        *,
        block: int,
        most: int,
        steps: int,
        places: Integer[np.ndarray, " rows"],
    ) -> None:
        self.of_a_step = max(1, -(-min(most, len(source)) // block))
        self._source, self._draw, self._block, self._steps, self._places = source, draw, block, steps, places
        self._draws: dict[int, Integer[np.ndarray, " m"]] = {}
        self._kept = (
            source.blocks_ahead(len(places)) // self.of_a_step + 2
        )  # steps at most, of which parts are read at a time
        self._drawing = threading.Lock()
        self._stopped = threading.Event()
        self._threads: set[threading.Thread] = set()

    def __len__(self) -> int:
        return self._steps * self.of_a_step

    def __getitem__(self, index: int) -> tuple[Block, ...]:
        self._threads.add(threading.current_thread())
        step, part = divmod(index, self.of_a_step)
        indices = self._drawn(step)
        first = part * self._block
        end = first + self._block if part < self.of_a_step - 1 else len(indices)
        return tuple(self._read(indices, start) for start in range(first, min(end, len(indices)), self._block))

    def stop(self) -> None:
        """Have what is being read end early: nobody wants it any more."""
        self._stopped.set()

    def join(self) -> None:
        """Wait until all threads have ended that have read, after `stop` and the end of their pool."""
        for thread in self._threads - {threading.current_thread()}:
            thread.join()

    def _read(self, indices: Integer[np.ndarray, " m"], start: int) -> Block:
        places = start + self._places
        wanted = indices[places[places < len(indices)]]
        return Block(self._source.read_padded(wanted, len(places), self._stopped.is_set), start)

    def _drawn(self, step: int) -> Integer[np.ndarray, " m"]:
        """The indices drawn at a step, drawn once."""
        if (known := self._draws.get(step)) is not None:
            return known
        with self._drawing:
            if self._stopped.is_set():
                raise Stopped
            if step not in self._draws:
                self._draws[step] = self._source.check(self._draw(step), f"draw({step})")
                for old in [old for old in self._draws if old < max(self._draws) - self._kept]:
                    del self._draws[old]
            return self._draws[step]
