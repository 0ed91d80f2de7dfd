"""Steps over records that stay where they are until they are drawn: sums block by block, then one step of them.

A step over arrays is one program, which gathers its microbatches itself. Here a block is a few microbatches, which a thread has
read while earlier steps were computed, and comes to a program that adds them to those before; then the step is made of the sum.
Draws, keys, noise and the order of the sum are the same, and so are the parameters.

What is read is a function of the state's keys and step, so that a run goes on from a checkpoint with nothing but its state. A
state's arrays are taken only when all records of a step are there: where one can't be read, the state can be gone on from.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._spread import Spread, by_words
from ..clipping import ClippedGrad, Summing
from ..reading import Block, Reader, Source
from ..sampling._batches import drawn_indices
from ._compiling import jit_to_run_often
from ._description import Run
from ._noise_of_step import NoiseOfStep
from ._self_check import signature

_SAMPLES = 16  # records by which processes see that they read the same
_BLOCK_BYTES = 2**24  # of a block's records, unless a microbatch takes more: sixteen threads read 256 MiB ahead


@dataclass
class _Reading:
    """A reader at work: of what, for which draws, and where its blocks go.

    Attributes:
        source: what is read.
        keys: of the run whose draws they are.
        kind: of the arguments that addends are made of.
        summing: how blocks are added up.
        rows: of a microbatch.
        places: which of them this process reads.
        microbatches: of a block.
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
    microbatches: int
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
        update: `update(keys, sums, size, carry, noise)` gives the next carry and the metrics, traced.
        takes_rng: whether the loss takes a key.
    """

    def __init__(self, run: Run, grad_fn: ClippedGrad, update: Callable[..., Any], *, takes_rng: bool) -> None:
        self._run, self._grad_fn, self._update, self._takes_rng = run, grad_fn, update, takes_rng
        self._reading: _Reading | None = None
        self._waited = 0.0

    @cached_property
    def _add(self) -> Any:
        return jit_to_run_often(self._with_block, static_argnames="summing", donate_argnames="addends")

    @cached_property
    def _make(self) -> Any:
        return jit_to_run_often(self._made, static_argnames="summing", donate_argnames="carry")

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
        (keys_there, number, shared) = put((keys, np.int32(step), shared))
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
                count = min(reading.sizes[step] - block.start, reading.microbatches * reading.rows)
                where = put((np.int32(block.start), np.int32(count)))
                addends = self._add(addends, self._placed(block, reading), where, *given, summing=summing)
            size = put(np.int32(reading.sizes.pop(step, 0)))
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
        usual = math.ceil(sampler.usual_size)
        microbatches = max(1, min(math.ceil(usual / rows), _BLOCK_BYTES // (rows * source.record_bytes)))
        sizes: dict[int, int] = {}

        def draw(step: int) -> np.ndarray:
            indices = drawn_indices(sampler, step)
            sizes[step] = len(indices)
            return indices

        in_block = np.add.outer(rows * np.arange(microbatches), places).ravel()
        remaining = self._run.steps - step
        reader = Reader(
            source, draw, block=microbatches * rows, most=usual, first=step, steps=remaining, places=in_block
        )
        zeros = self._zeros(given, source, summing, rows)
        return _Reading(source, keys, kind, summing, rows, places, microbatches, zeros, reader, sizes, step)

    def _zeros(self, given: tuple[Any, ...], source: Source, summing: Summing, rows: int) -> Callable[[], Any]:
        """What makes the addends of no block, where those of a block are."""
        block = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, rows, *leaf.shape), leaf.dtype), source.like)
        where = (jax.ShapeDtypeStruct((), jnp.int32),) * 2
        like = jax.eval_shape(partial(self._with_block, summing=summing), None, block, where, *given)
        spread = summing.spread
        places = None if spread is None else summing.several(rows)(spread.places_of_addends(given[0]))
        return jax.jit(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like), out_shardings=places)

    def _with_block(
        self,
        addends: Any,
        rows: Any,
        where: Any,
        params: Any,
        rule_state: Any,
        keys: Any,
        step: Any,
        shared: Any,
        *,
        summing: Summing,
    ) -> Any:
        """The addends with those of a block, of which `where` has the start and the number of examples; traced."""
        rng = jax.random.fold_in(keys.loss, step) if self._takes_rng else None

        def added(params: Any, addends: Any, rows: Any, where: Any, shared: Any, rule_state: Any, rng: Any) -> Any:
            start, count = where
            return summing.with_block(addends, params, rows, start, count, shared, rng=rng, rule_state=rule_state)

        several = summing.several(jax.tree.leaves(rows)[0].shape[1])
        run = added if summing.spread is None else partial(summing.spread.gather, added, several=several)
        return run(params, addends, rows, where, shared, rule_state, rng)

    def _made(self, carry: tuple[Any, ...], addends: Any, keys: Any, size: Any, *, summing: Summing) -> Any:
        """The step, of all that was added up; traced."""

        def update(carry: tuple[Any, ...], addends: Any, keys: Any, size: Any) -> Any:
            params, _, rule_state, noise_state = carry
            noise = NoiseOfStep.of(self._run, summing.spread, params)
            sums = summing.finish(addends, rule_state, noise.before(noise_state))
            return self._update(keys, sums, size, carry, noise)

        run = update if summing.spread is None else partial(summing.spread.run, update)
        return run(carry, addends, keys, size)

    def _text(self, carry: Any, addends: Any, given: tuple[Any, ...], reading: _Reading) -> str:
        """Of both programs, as they are compiled."""
        number, zero = reading.microbatches * len(reading.places), np.int32(0)
        nothing = Block(jax.tree.map(lambda leaf: np.zeros((number, *leaf.shape), leaf.dtype), reading.source.like), 0)
        zero = zero if reading.summing.spread is None else reading.summing.spread.everywhere(zero)
        rows = self._placed(nothing, reading)
        add = self._add.lower(addends, rows, (zero, zero), *given, summing=reading.summing)
        make = self._make.lower(carry, addends, given[2], zero, summing=reading.summing)
        return add.as_text() + make.as_text()

    def _placed(self, block: Block, reading: _Reading) -> Any:
        """The rows of a block by microbatches, each on its device."""
        by_microbatch = lambda leaf: leaf.reshape(reading.microbatches, len(reading.places), *leaf.shape[1:])
        rows, spread = jax.tree.map(by_microbatch, block.rows), reading.summing.spread
        if spread is None:
            return jax.device_put(rows)
        return jax.tree.map(partial(spread.rows_from_here, rows=reading.rows, places=reading.places), rows)


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
