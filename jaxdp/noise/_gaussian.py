"""Gaussian noise: each update draws anew, by the key and the number of updates before it."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Key

from .. import _checks
from .._alike import Alike
from .._block import Block
from .._errors import UsageError
from .._types import Params
from ..jaxprs import as_one_value
from ._copies import refuse_shared_key
from ._keys import Domain, own_key
from ._noise import Noise
from .draws import tree_normal

if TYPE_CHECKING:
    from dp_accounting import GaussianDpEvent

_WHOLE = 2**19  # values of a sum that a GPU makes in one piece


class GaussianState(NamedTuple):
    """The key of the noise, and how many updates have been made: the noise of an update is a function of both."""

    key: Key[Array, ""]
    step: Int32[Array, ""]


@dataclass(frozen=True)
class Gaussian:
    r"""Independent Gaussian noise on every value of every sum, \(S + s Z\) with \(Z \sim \mathcal N(0, I)\) and the scale s.

    Noise is float32, no two values of it from the same bits: each update has its own key, each value its index.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> noise = Gaussian()
        >>> sums = {"w": jnp.zeros(2)}
        >>> state = noise.init(jax.random.key(0), sums)
        >>> noisy, state = noise.update(state, sums, jnp.float32(1.1))
        >>> noisy["w"].shape, int(state.step)
        ((2,), 1)

    References:
        Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, appendix A.
    """

    def init(self, key: Key[Array, ""], params: Params) -> GaussianState:
        """The state before the first update; `params` are shaped like the sums."""
        _checks.key(key)
        return GaussianState(key, refuse_shared_key(key, params, jnp.zeros((), jnp.int32)))

    def update(self, state: GaussianState, sums: Any, scale: Float[Array, ""]) -> tuple[Any, GaussianState]:
        """The sums with noise of standard deviation `scale`, and the next state.

        Raises:
            UsageError: for a state that is none, for sums that aren't arrays of real numbers, and under `jax.vmap` or
                `jax.shard_map` with one key for several sums or scales.
        """
        _checks.numbers_alone(
            "sums", sums, "give float32 arrays; of complex ones, the real and the imaginary part", real=True
        )
        return self._update(state, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), sums), scale, frozenset())

    def _update(self, state: GaussianState, sums: Any, scale: Any, done: Set[int]) -> tuple[Any, GaussianState]:
        """`update` of all leaves but those whose numbers are in `done`."""
        check_state(state)
        apart = sums, scale  # one noise at two scales tells its sum as well
        step, one = refuse_shared_key((state.key, state.step), apart, (state.step, jnp.ones((), jnp.float32)))
        scale = one * scale
        normals = jax.tree.leaves(tree_normal(_key_of_update(state.key, step), sums))
        noisy, structure = jax.tree.flatten(sums)
        left = [i for i in range(len(noisy)) if i not in done]
        totals, draws = ([leaves[i] for i in left] for leaves in (noisy, normals))
        alike = Alike.of(totals)
        stacks = alike.stack(_summed_up(totals)), alike.stack(draws)
        stack = [total + scale * normal for total, normal in zip(*stacks, strict=True)]
        for i, leaf in zip(left, alike.apart(_as_one_value(stack)), strict=True):
            noisy[i] = leaf
        return structure.unflatten(noisy), GaussianState(state.key, state.step + 1)

    def event(self, noise_multiplier: _checks.Real) -> "GaussianDpEvent":
        """`GaussianDpEvent(noise_multiplier)`; refuses 0, whose epsilon would be infinite."""
        from dp_accounting import GaussianDpEvent

        sigma = _checks.non_negative("noise_multiplier", noise_multiplier, "give the noise in units of the clip norm")
        if sigma == 0:
            raise UsageError(
                "noise_multiplier=0 adds no noise, so epsilon is infinite: give noise above 0, such as 1.1"
            )
        return GaussianDpEvent(sigma)

    def in_words(self, noise_multiplier: float) -> str:
        """The noise in a statement."""
        return f"Gaussian noise of standard deviation {noise_multiplier:.6g} times that norm"

    def label(self, noise_multiplier: float) -> str:
        """The noise in a ledger's entry."""
        return f"noise multiplier {noise_multiplier:g}"


@dataclass(frozen=True)
class GaussianInBlocks(Gaussian):
    """Gaussian noise on sums that several devices add up: of large leaves each device draws a block, not the whole.

    A device adds it to its own addend, before these are added up: a block of one addend costs less than a sum that is passed on
    in parts. Together the devices' blocks are the leaf, each once, and the values are those that `Gaussian` adds.

    Attributes:
        done: the numbers of the leaves whose noise `add_blocks` adds, for which `update` has nothing left to do.
    """

    done: frozenset[int]

    def add_blocks(
        self, addends: Any, blocks: Mapping[int, Block], state: GaussianState, scale: Float[Array, ""]
    ) -> Any:
        """A device's addends, with noise on its own block of each leaf that is `done`."""
        check_state(state)
        normals = jax.tree.leaves(tree_normal(_key_of_update(state.key, state.step), addends, blocks))
        noisy, structure = jax.tree.flatten(addends)
        for i in self.done:
            noisy[i] = blocks[i].put(noisy[i], blocks[i].of(noisy[i]) + scale * normals[i])
        return structure.unflatten(noisy)

    def update(self, state: GaussianState, sums: Any, scale: Float[Array, ""]) -> tuple[Any, GaussianState]:
        """The sums with noise on what isn't `done`, and the next state."""
        return self._update(state, sums, scale, self.done)


def in_blocks(noise: Noise, leaves: frozenset[int]) -> GaussianInBlocks | None:
    """The same noise, that of these leaves in blocks; None where there are none, or it isn't known to be the same."""
    return GaussianInBlocks(leaves) if leaves and type(noise) is Gaussian else None


def _summed_up(sums: list[Any]) -> list[Any]:
    """The same, of which small ones are made before noise is added, on a GPU.

    There a product with a small result comes in parts, which are added up by what reads them. One kernel for the parts and the
    draws of all leaves of a kind took an H100 121 µs of a transformer's step, where the draws alone take 12
    (benchmarks/workloads.py, transformer-28). Large sums are whole, and a pass over them costs more.
    """
    small = {i: leaf for i, leaf in enumerate(sums) if leaf.size < _WHOLE}
    as_they_are = lambda sums: sums
    made = jax.lax.platform_dependent(small, cpu=as_they_are, tpu=as_they_are, default=jax.lax.optimization_barrier)
    return [made.get(i, leaf) for i, leaf in enumerate(sums)]


def _as_one_value(noisy: Any) -> Any:
    """The same, of which all who read it see one value: its draw is never computed twice, a rounding apart.

    That takes a barrier, but on a TPU. Its compiler draws once by itself (`benchmarks/accelerators.py --check` counts), and fuses
    the optimizer with the draw and with the product whose sum is hidden, where a barrier costs a pass over all parameters.
    """
    return as_one_value(noisy, rounded_alike=True)


def _key_of_update(key: Key[Array, ""], step: Int32[Array, ""]) -> Key[Array, ""]:
    return jax.random.fold_in(own_key(key, Domain.PRIVATIZE), step)


def check_state(state: Any) -> None:
    """Refuse what is no state of this noise."""
    if not isinstance(state, GaussianState):
        raise UsageError(
            f"Gaussian: state is a {type(state).__name__}: begin with state = init(...), as in tx.init(params), go on "
            "with what update gives"
        )
