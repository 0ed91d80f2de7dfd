"""What the processes of one run must have in common before its first step: else their noise is not the noise of one run.

Each process computes its own part of a step, with keys, numbers and a program of its own. Two that disagree would add up sums of
different losses, or noise that is not what was drawn elsewhere; JAX would not notice, or wait for ever. So they exchange
hashes: of the run, its keys and states, the versions of packages, the compiled program's text, and of whatever array two
processes hold the same part of.
"""

import hashlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .. import _checks
from .._processes import agree, facts_of_versions
from ._state import in_same_words


class Agreement:
    """That the processes make the same steps: compared before the first, and where one doesn't go on from the one before."""

    def __init__(self) -> None:
        self._programs: set[Any] = set()  # that all processes have
        self._left: list[Any] = []  # by the last step, to see whether the next goes on from there
        self._shared: list[Any] = []  # with the last step

    def check(self, program: Any, held: Any, shared: Any, compare: Callable[[], None]) -> None:
        """Of a step that is about to be made.

        Args:
            program: which one it is, known by shapes and types.
            held: what it goes on from.
            shared: what the loss gets beside an example; another one at a step that goes on is compared by itself.
            compare: compares everything.
        """
        before, self._shared = self._shared, jax.tree.leaves(shared)
        if program not in self._programs or not are_the_same(jax.tree.leaves(held), self._left):
            compare()
            self._programs.add(program)
        elif not are_the_same(self._shared, before):
            agree(_facts_of("shared", shared))

    def left(self, held: Any) -> None:
        """What a step has left."""
        self._left = jax.tree.leaves(held)


def are_the_same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether they are the same objects, one for one."""
    return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))


def agree_on_step(run: Any, state: Any, data: Any, shared: Any, program: str) -> None:
    """Compare everything that a step is made of; all processes must call it.

    Args:
        run: the description.
        state: of the run, on the mesh or on each process.
        data: pytree of arrays on the mesh.
        shared: what the loss gets beside an example.
        program: the text of what is compiled.

    Raises:
        UsageError: in every process, naming what differs and where.
    """
    facts: dict[str, bytes | str] = {"the run's description": in_same_words(run), "the program of a step": program}
    facts |= facts_of_versions()
    facts["the ledger of what was spent before"] = repr(state.spent_before)
    for name, tree in {"state": state, "data": data, "shared": shared}.items():
        facts |= _facts_of(name, tree)
    agree(facts)


def _facts_of(name: str, tree: Any) -> dict[str, bytes]:
    """What processes must have alike of a tree of arrays, as facts to agree on."""
    return {
        f"{name}{jax.tree_util.keystr(path)}{part}": content
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        for part, content in _held(leaf)
    }


def _held(leaf: Any) -> Iterator[tuple[str, bytes]]:
    """The parts of an array that this process holds and another may, by which they are, as hashes of type and contents."""
    leaf = _checks.words(leaf)
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        yield "", digest(leaf)
        return
    processes: dict[str, set[int]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        processes.setdefault(str(index), set()).add(device.process_index)
    for index, shard in {str(shard.index): shard for shard in leaf.addressable_shards}.items():
        if len(processes[index]) > 1:
            yield f" at {index}", digest(shard.data)


def digest(leaf: Any) -> bytes:
    """Of the type, shape and contents of an array, a number or a key."""
    array = np.asarray(_checks.words(leaf))
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()).digest()
