"""The same program for many teachers: how many of them at once, and where.

On an accelerator one call is a `vmap` over as many teachers as memory takes, divided over the devices. A CPU is faster with one
teacher after another, whose weights stay in cache, than with any number in a `vmap` (measured by benchmarks/offices.py); there a
call has one teacher, and as many calls run at a time as there are cores. A teacher comes out the same but for rounding.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from .. import _checks

_ROOM = 0.5  # the part of a device's memory that teachers may fill
_MOST = 256  # teachers on a device at once, however small they are


class SideBySide:
    """A function of one teacher, made to run for many.

    Args:
        fn: `fn(*own)`, jittable; each of `own` belongs to one teacher.
        at_once: teachers in one call; by default what suits the device.
    """

    def __init__(self, fn: Callable[..., Any], at_once: int | None = None) -> None:
        self._fn = fn
        self._at_once = None if at_once is None else _checks.count("at_once", at_once, "give the teachers of one call")
        platform = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        self._devices = jax.devices(getattr(platform, "platform", platform))

    def map(self, inputs_of: Callable[[np.ndarray], tuple[Any, ...]], teachers: Sequence[int]) -> Iterator[Any]:
        """The outputs for these teachers in order, on the host, as many at a time as one call has.

        Args:
            inputs_of: from the numbers of some teachers to the function's arguments, each with a leading axis [teachers].
            teachers: their numbers.

        Returns:
            Iterator of pytrees with a leading axis.
        """
        numbers = np.asarray(teachers, np.int32)
        if not len(numbers):
            return
        devices = len(self._devices)
        most = (
            len(numbers) if self._at_once else -(-len(numbers) // devices) * devices
        )  # filled up, so that all have work
        at_once = min(self._at_once or self._suitable(inputs_of(numbers[:1])), most)
        parts = [numbers[start : start + at_once] for start in range(0, len(numbers), at_once)]
        filled = [np.resize(part, at_once) for part in parts]
        compiled = self._program(at_once).lower(*inputs_of(filled[0])).compile()
        call = lambda part: jax.device_get(compiled(*inputs_of(part)))
        with ThreadPoolExecutor(self._workers(at_once)) as pool:
            for part, out in zip(parts, pool.map(call, filled), strict=True):
                yield jax.tree.map(partial(_first, len(part)), out)

    def _program(self, at_once: int) -> Any:
        """The function with a leading axis on all it takes and gives, divided over the devices that divide `at_once`."""

        def for_all(*own: Any) -> Any:
            if len(jax.tree.leaves(own)[0]) > 1:
                return jax.vmap(self._fn)(*own)
            return jax.tree.map(lambda leaf: leaf[None], self._fn(*jax.tree.map(lambda leaf: leaf[0], own)))

        number = max(count for count in range(1, len(self._devices) + 1) if at_once % count == 0)
        if number == 1:
            return jax.jit(for_all)
        by_teacher, mesh = PartitionSpec("teachers"), Mesh(np.array(self._devices[:number]), ("teachers",))
        return jax.jit(jax.shard_map(for_all, mesh=mesh, in_specs=by_teacher, out_specs=by_teacher, check_vma=False))

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


def _first(number: int, leaf: Any) -> Any:
    return leaf[:number]
