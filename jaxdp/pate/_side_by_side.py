"""The same program for many teachers: how many of them at once, and where.

On an accelerator one call is a `vmap` over as many teachers as memory takes, divided over the devices. A CPU is faster with one
teacher after another, whose weights stay in cache, than with any number in a `vmap` (measured by benchmarks/offices.py); there a
call has one teacher, and as many calls run at a time as there are cores. A teacher comes out the same but for rounding.

Several processes deal out the teachers, each computing its own on its own devices, with nothing to say to the others until a call
is done. What comes out is then gathered, once, so that every process has it for all teachers in the same order; meanwhile the
next calls go on.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from .. import _checks
from .._errors import UsageError
from .._platform import default_device
from .._processes import agree, facts_of_versions, gathered, several
from ..clipping._apart import refuse_what_sees_others
from ..clipping._inputs import shapes_of_row
from ..jaxprs import vectorised

_ROOM = 0.5  # the part of a device's memory that teachers may fill
_MOST = 256  # teachers on a device at once, however small they are


class SideBySide:
    """A function of one teacher, made to run for many.

    Args:
        fn: `fn(*own)`, jittable; each of `own` belongs to one teacher.
        at_once: teachers in one call of one process; by default what suits the device.
    """

    def __init__(self, fn: Callable[..., Any], at_once: int | None = None) -> None:
        self._fn = fn
        self._at_once = None if at_once is None else _checks.count("at_once", at_once, "give the teachers of one call")
        self._devices = jax.local_devices(backend=default_device().platform)

    def map(self, inputs_of: Callable[[np.ndarray], tuple[Any, ...]], teachers: Sequence[int]) -> Iterator[Any]:
        """The outputs for these teachers in order, on the host, as many at a time as one call of each process has.

        Args:
            inputs_of: from the numbers of some teachers to the function's arguments, each with a leading axis [teachers].
            teachers: their numbers. Several processes all give the same, and all go through to the end or stop at the same part.

        Returns:
            Iterator of pytrees with a leading axis.

        Raises:
            UsageError: in every process, where they would compute different things.
        """
        numbers = np.asarray(teachers, np.int32)
        agree({"the teachers to train": numbers.tobytes(), **facts_of_versions()})
        if not len(numbers):
            return
        at_once, processes = self._number_at_once(inputs_of, numbers), jax.process_count() if several() else 1
        per_round = at_once * processes
        rounds = [numbers[start : start + per_round] for start in range(0, len(numbers), per_round)]
        own = jax.process_index() if several() else 0
        parts = [np.resize(each, per_round)[own * at_once : (own + 1) * at_once] for each in rounds]
        lowered = self._program(at_once).lower(*inputs_of(parts[0]))
        agree({"the program of a teacher": lowered.as_text() if several() else ""})
        compiled = lowered.compile()
        call = lambda part: jax.device_get(compiled(*inputs_of(part)))
        pool = ThreadPoolExecutor(self._workers(at_once))
        try:
            for each, out in zip(rounds, pool.map(call, parts), strict=True):
                yield jax.tree.map(partial(_first, len(each)), _of_all(out))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # whoever breaks off doesn't wait for the calls under way

    def _number_at_once(self, inputs_of: Callable[[np.ndarray], tuple[Any, ...]], numbers: np.ndarray) -> int:
        """Teachers in one call, the same in all processes, and no more than leave each of them work."""
        devices, most = len(self._devices), -(-len(numbers) // (jax.process_count() if several() else 1))
        if not self._at_once:
            most = -(-most // devices) * devices  # filled up, so that all have work
        at_once = min(self._at_once or self._suitable(inputs_of(numbers[:1])), most)
        return min(map(int, gathered(str(at_once).encode())))

    def _program(self, at_once: int) -> Any:
        """The function with a leading axis on all it takes and gives, divided over the devices that divide `at_once`."""

        def for_all(*own: Any) -> Any:
            if len(jax.tree.leaves(own)[0]) > 1:
                self._refuse_what_sees_others(own)
                return vectorised(self._fn, *own)
            return jax.tree.map(lambda leaf: leaf[None], self._fn(*jax.tree.map(lambda leaf: leaf[0], own)))

        number = max(count for count in range(1, len(self._devices) + 1) if at_once % count == 0)
        if number == 1:
            return jax.jit(for_all)
        if not jax.sharding.get_abstract_mesh().empty:
            raise UsageError(
                "jax.set_mesh is set, and models are computed side by side on a mesh of their own: call this outside of it"
            )
        by_teacher, mesh = PartitionSpec("teachers"), Mesh(np.array(self._devices[:number]), ("teachers",))
        return jax.jit(jax.shard_map(for_all, mesh=mesh, in_specs=by_teacher, out_specs=by_teacher, check_vma=False))

    def _refuse_what_sees_others(self, own: tuple[Any, ...]) -> None:
        """A teacher that has seen what is another's would vote by records that aren't its own."""
        program = jax.make_jaxpr(self._fn)(*shapes_of_row(own))
        everything = [True] * len(jax.tree.leaves(own))
        refuse_what_sees_others(program, everything, "give at_once=1, one teacher after another")

    def _suitable(self, one: tuple[Any, ...]) -> int:
        """As many as the devices' memory takes, from what one teacher needs; on a CPU one a device."""
        if self._devices[0].platform == "cpu":
            return len(self._devices)
        needs = self._program(1).lower(*one).compile().memory_analysis()
        each = needs.temp_size_in_bytes + needs.argument_size_in_bytes + needs.output_size_in_bytes
        room = (self._devices[0].memory_stats() or {}).get("bytes_limit", 4 * 2**30)
        return len(self._devices) * int(np.clip(_ROOM * room / max(each, 1), 1, _MOST))

    def _workers(self, at_once: int) -> int:
        """Calls that run at a time: where each is one teacher on a CPU, one a core."""
        return (os.cpu_count() or 1) if at_once == 1 and self._devices[0].platform == "cpu" else 1


def stacked(parts: Iterable[Any], on_progress: Callable[[int], None] | None) -> Any:
    """What `SideBySide.map` gives, as one pytree with a leading axis; the number done so far is told after each part."""
    kept, done = [], 0
    for part in parts:
        kept.append(part)
        done += len(jax.tree.leaves(part)[0])
        if on_progress is not None:
            on_progress(done)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)


def _first(number: int, leaf: Any) -> Any:
    return leaf[:number]


def _of_all(own: Any) -> Any:
    """The rows of all processes, in the order of processes, each of which has as many."""
    if not several():
        return own
    leaves, structure = jax.tree.flatten(own)
    ends = np.cumsum([0, *(leaf.nbytes for leaf in leaves)])
    parts = gathered(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves))
    rows_of = lambda leaf, start, end: np.concatenate(
        [np.frombuffer(part[start:end], leaf.dtype).reshape(leaf.shape) for part in parts]
    )
    return jax.tree.unflatten(structure, list(map(rows_of, leaves, ends, ends[1:])))
