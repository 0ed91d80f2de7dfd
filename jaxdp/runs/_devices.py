"""The devices of a run: each holds the parameters and the data, and computes its part of every step."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import _checks
from .._errors import UsageError
from .._meeting import silent_output
from .._processes import several
from .._spread import by_words
from ..dpsgd._state import TrainState
from ._device import in_words, use_device


@dataclass(frozen=True)
class Devices:
    """Devices of one kind.

    Attributes:
        all: those of all processes, those of the first one first.
    """

    all: tuple[Any, ...]

    def connect(self) -> None:
        """Let the devices of several processes find each other now: CPUs wait half a minute, and compiling can take more."""
        if several():
            of_each = [jax.device_put(np.ones(1, np.float32), device) for device in self._local]
            divided = NamedSharding(self._sharding.mesh, PartitionSpec("data"))
            ones = jax.make_array_from_single_device_arrays((len(self.all),), divided, of_each)
            with silent_output():
                jax.block_until_ready(jax.jit(jnp.sum, out_shardings=self._sharding)(ones))

    @property
    def own(self) -> Any:
        """The one on which this process computes what is not divided."""
        return self._local[0]

    def everywhere(self, tree: Any) -> Any:
        """Arrays on every device, each process giving the same ones; on one device alone, they are only put there."""
        if len(self.all) == 1:
            return jax.device_put(tree)
        return jax.tree.map(self._everywhere, tree)

    def holding(self, state: TrainState) -> TrainState:
        """A state with all that a step changes, and its keys, on every device."""
        names = ("params", "opt_state", "keys", "rule_state", "noise_state")
        return state._replace(**{name: self.everywhere(getattr(state, name)) for name in names})

    @property
    def copies(self) -> int:
        """How many of them are this process's."""
        return len(self._local)

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
        if _checks.is_key(leaf):
            return by_words(self._everywhere, leaf)
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
    of_process = jax.local_devices(backend=platform)
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
