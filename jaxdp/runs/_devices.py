"""The devices of a run: each holds the parameters and the data, and computes its part of every step."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._errors import UsageError
from .._processes import several
from ._device import in_words, use_device


@dataclass(frozen=True)
class Devices:
    """Devices of one kind.

    Attributes:
        all: those of all processes, those of the first one first.
    """

    all: tuple[Any, ...]

    @property
    def own(self) -> Any:
        """The one on which this process computes what is not divided."""
        return self._local[0]

    def everywhere(self, tree: Any) -> Any:
        """Arrays on every device, each process giving the same ones; on one device alone, they are only put there."""
        if len(self.all) == 1:
            return jax.device_put(tree)
        return jax.tree.map(self._everywhere, tree)

    def in_words(self) -> str:
        """Their number and kind, for a person."""
        number = f"{len(self.all)} × " if len(self.all) > 1 else ""
        return number + in_words(self.own) + (f", {jax.process_count()} processes" if several() else "")

    @cached_property
    def _local(self) -> list[Any]:
        return [device for device in self.all if device.process_index == jax.process_index()]

    @cached_property
    def _sharding(self) -> NamedSharding:
        return NamedSharding(Mesh(np.array(self.all), ("data",)), PartitionSpec())

    def _everywhere(self, leaf: Any) -> Any:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = self._everywhere(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        copies = [jax.device_put(leaf, device) for device in self._local]
        return jax.make_array_from_single_device_arrays(copies[0].shape, self._sharding, copies)


def use_devices(name: str, number: int | None) -> Devices:
    """Choose the platform for all that follows, and devices of it.

    Args:
        name: of the platform; "auto" for the best there is.
        number: how many of each process; None for all.

    Raises:
        UsageError: where there is no such platform, or fewer devices.
    """
    platform = use_device(name).platform
    of_process = [device for device in jax.local_devices(backend=platform)]
    if number is not None and number > len(of_process):
        raise UsageError(
            f"--devices={number} is more than JAX finds here ({len(of_process)}, {in_words(of_process[0])}): give at most so many"
        )
    taken: Counter[int] = Counter()
    chosen = []
    for device in sorted(jax.devices(platform), key=lambda device: (device.process_index, device.id)):
        taken[device.process_index] += 1
        if number is None or taken[device.process_index] <= number:
            chosen.append(device)
    return Devices(tuple(chosen))


def here(tree: Any) -> Any:
    """This process's own copies of arrays that are whole on every device; others as they are."""
    return jax.tree.map(_here, tree)


def _here(leaf: Any) -> Any:
    return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and leaf.is_fully_replicated else leaf
