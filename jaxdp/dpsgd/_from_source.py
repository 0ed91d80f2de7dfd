"""Steps over records that stay where they are until they are drawn: sums block by block, then one step of them.

A step over arrays is one program, which gathers its microbatches itself. Here each microbatch is a block, which threads have
read while earlier steps were computed, and comes to a program of one microbatch; then the step is made of their sum. Draws,
keys, noise and the order of the sum are the same, and so are the parameters.

What is read is a function of the state's keys and step, so that a run goes on from a checkpoint with nothing but its state. A
state's arrays are taken only when all records of a step are there: where one can't be read, the state can be gone on from.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._spread import Spread, by_words
from ..clipping import ClippedGrad, Summing
from ..reading import Block, Reader, Source
from ._description import Run
from ._self_check import signature

_SAMPLES = 16  # records by which processes see that they read the same


@dataclass
class _Reading:
    """A reader at work: of what, for which draws, and where its blocks go.

    Attributes:
        source: what is read.
        keys: of the run whose draws they are.
        kind: of the arguments that addends are made of.
        summing: how blocks are added up.
        rows: of a block.
        places: which of them this process reads.
        zeros: makes the addends of no block.
        reader: at work.
        sizes: of the draws made so far whose steps aren't made yet.
        next: the step that it is at.
    """

    source: Source
    keys: Any
    kind: Any
    summing: Summing
    rows: int
    places: np.ndarray
    zeros: Callable[[], Any]
    reader: Reader
    sizes: dict[int, int]
    next: int

    def is_of(self, source: Source, keys: Any, kind: Any, spread: Spread | None, step: int) -> bool:
        """Whether it can go on with this step."""
        same = self.source is source and self.keys is keys and self.summing.spread == spread
        return same and self.kind == kind and self.next == step


class FromSource:
    """Makes steps of what a source has.

    Args:
        run: the description.
        grad_fn: of the run.
        update: `update(keys, sums, size, carry)` gives the next carry and the metrics, traced.
        takes_rng: whether the loss takes a key.
    """

    def __init__(self, run: Run, grad_fn: ClippedGrad, update: Callable[..., Any], *, takes_rng: bool) -> None:
        self._run, self._grad_fn, self._update, self._takes_rng = run, grad_fn, update, takes_rng
        self._add = jax.jit(self._with_block, static_argnames="summing", donate_argnames="addends")
        self._make = jax.jit(self._made, static_argnames="summing", donate_argnames="carry")
        self._reading: _Reading | None = None
        self._waited = 0.0

    @property
    def waited(self) -> float:
        """Seconds that steps have waited for records."""
        return self._waited + (self._reading.reader.waited if self._reading else 0.0)

    def step(
        self,
        carry: tuple[Any, ...],
        keys: Any,
        step: int,
        source: Source,
        shared: tuple[Any, ...],
        spread: Spread | None,
        agree: Callable[[Callable[[], str]], None],
    ) -> tuple[tuple[Any, ...], Any]:
        """One step: the next carry and its metrics.

        Args:
            carry: what a step changes, where it is kept; taken.
            keys: of the run.
            step: its number.
            source: of the records.
            shared: as the loss gets it.
            spread: over which devices each block is divided; None for one.
            agree: called before anything is computed, with a function that gives the text of the programs.

        Raises:
            UsageError: for a record that can't be read, which it names; nothing of `carry` is taken then.
        """
        spread = None if spread is None else replace(spread, rows_divided=True)
        put = (lambda tree: tree) if spread is None else spread.everywhere
        (keys_there, number, shared) = put((keys, jnp.int32(step), shared))
        params, _, rule_state, _ = carry
        given = (params, rule_state, keys_there, number, shared)
        kind = signature(given)
        if self._reading is None or not self._reading.is_of(source, keys, kind, spread, step):
            self.close()
            self._reading = self._read(given, kind, keys, step, source, spread)
        reading, summing = self._reading, self._reading.summing
        addends = reading.zeros()
        agree(partial(self._text, carry, addends, given, reading))
        try:
            for block in reading.reader.blocks(step):
                rows, mask = self._placed(block, reading.sizes[step], reading)
                addends = self._add(addends, rows, mask, put(jnp.int32(block.start)), *given, summing=summing)
            size = put(jnp.int32(reading.sizes.pop(step, 0)))
            made = self._make(carry, addends, keys_there, size, summing=summing)
        except BaseException:  # of a record that can't be read, or Ctrl-C: the next step begins to read anew
            self.close()
            raise
        reading.next = step + 1
        if reading.next == self._run.steps:
            self.close()
        return made

    def close(self) -> None:
        """End reading, if it is under way."""
        if self._reading is not None:
            self._waited = self.waited
            self._reading.reader.close()
            self._reading = None

    def _read(
        self, given: tuple[Any, ...], kind: Any, keys: Any, step: int, source: Source, spread: Spread | None
    ) -> _Reading:
        """Begin to read at a step."""
        given = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), given)
        params, _, _, _, shared = given
        sampler = self._run.sampler(_on_this_process(keys.sampling))
        summing = Summing(self._grad_fn, spread, sampler.usual_size)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), source.like)
        rng = keys.loss if self._takes_rng else None
        rows = _size(lambda shared: summing.microbatch_size(params, one, shared, rng, len(source)), shared)
        places = np.arange(rows) if spread is None else spread.places_here(rows)
        sizes: dict[int, int] = {}

        def draw(step: int) -> np.ndarray:
            batch = sampler.batch(step)
            indices = np.asarray(batch.indices)[np.asarray(batch.mask)]
            sizes[step] = len(indices)
            return indices

        usual = math.ceil(sampler.usual_size)
        remaining = self._run.steps - step
        reader = Reader(source, draw, block=rows, most=usual, first=step, steps=remaining, places=places)
        return _Reading(
            source, keys, kind, summing, rows, places, self._zeros(given, source, summing, rows), reader, sizes, step
        )

    def _zeros(self, given: tuple[Any, ...], source: Source, summing: Summing, rows: int) -> Callable[[], Any]:
        """What makes the addends of no block, where those of a block are."""
        block = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype), source.like)
        mask, start = jax.ShapeDtypeStruct((rows,), jnp.bool_), jax.ShapeDtypeStruct((), jnp.int32)
        like = jax.eval_shape(partial(self._block, summing=summing), block, mask, start, *given)
        places = None if summing.spread is None else summing.spread.places_of_addends(given[0])
        return jax.jit(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like), out_shardings=places)

    def _block(
        self,
        rows: Any,
        mask: Any,
        start: Any,
        params: Any,
        rule_state: Any,
        keys: Any,
        step: Any,
        shared: Any,
        *,
        summing: Summing,
    ) -> Any:
        """The addends of a block; traced."""
        rng = self._rng(keys, step)

        def addends(params: Any, rows: Any, mask: Any, start: Any, shared: Any, rule_state: Any, rng: Any) -> Any:
            return summing.of_block(params, rows, mask, start, shared, rng=rng, rule_state=rule_state)

        run = addends if summing.spread is None else partial(summing.spread.gather, addends)
        return run(params, rows, mask, start, shared, rule_state, rng)

    def _with_block(self, addends: Any, *given: Any, summing: Summing) -> Any:
        return jax.tree.map(jnp.add, addends, self._block(*given, summing=summing))

    def _made(self, carry: tuple[Any, ...], addends: Any, keys: Any, size: Any, *, summing: Summing) -> Any:
        """The step, of all that was added up; traced."""

        def update(carry: tuple[Any, ...], addends: Any, keys: Any, size: Any) -> Any:
            return self._update(keys, summing.finish(addends, carry[2]), size, carry)

        run = update if summing.spread is None else partial(summing.spread.run, update)
        return run(carry, addends, keys, size)

    def _text(self, carry: Any, addends: Any, given: tuple[Any, ...], reading: _Reading) -> str:
        """Of both programs, as they are compiled."""
        nothing = Block(
            jax.tree.map(lambda leaf: np.zeros((len(reading.places), *leaf.shape), leaf.dtype), reading.source.like), 0
        )
        rows, mask = self._placed(nothing, 0, reading)
        zero = jnp.int32(0) if reading.summing.spread is None else reading.summing.spread.everywhere(jnp.int32(0))
        add = self._add.lower(addends, rows, mask, zero, *given, summing=reading.summing)
        make = self._make.lower(carry, addends, given[2], zero, summing=reading.summing)
        return add.as_text() + make.as_text()

    def _placed(self, block: Block, size: int, reading: _Reading) -> tuple[Any, Any]:
        """The rows of a block and their mask, each on its device."""
        mask = block.start + reading.places < size
        spread = reading.summing.spread
        if spread is None:
            return jax.device_put((block.rows, mask))
        return jax.tree.map(
            partial(spread.rows_from_here, rows=reading.rows, places=reading.places), (block.rows, mask)
        )

    def _rng(self, keys: Any, step: Any) -> Any:
        return jax.random.fold_in(keys.loss, step) if self._takes_rng else None


def samples(source: Source) -> Any:
    """Some records, from all parts of a source, by which processes see that they have the same."""
    return source.read(np.unique(np.linspace(0, len(source) - 1, _SAMPLES).astype(np.int64)))


def _size(of: Callable[[Any], int], shared: Any) -> int:
    """`of(shared)`, in which what is shared are arrays, as a loss takes them, though only their shapes are known."""
    found: list[int] = []
    jax.eval_shape(lambda shared: found.append(of(shared)), shared)
    return found[0]


def _on_this_process(key: Any) -> Any:
    """A key that no other process is needed to compute with."""
    if key.is_fully_addressable:
        return key
    return by_words(lambda words: jnp.asarray(np.asarray(words)), key)
