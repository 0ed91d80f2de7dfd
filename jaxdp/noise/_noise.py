"""The contract of a noise: a frozen value that hides a sum, with a state of its own and an event that says what it costs."""

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Key

from .. import _checks
from .._errors import UsageError
from .._types import Params

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@runtime_checkable
class Noise(Protocol):
    """A noise for sums of clipped gradients: a frozen dataclass with these methods; `jaxdp.noise.Gaussian` is one.

    `init` and `update` are traced by JAX. The step carries the state from one update to the next, and a checkpoint keeps it,
    whatever pytree of arrays it is; the noise of an update is a function of the state alone. A scalar of it that is called `step`
    counts the updates made, from 0: by that, updates beyond those that are accounted are refused. `event` must be true of what
    `update` draws: the accountants believe it. Samplings compose the events of updates as those of independent noises: noise
    that is correlated between updates has no event of one update, and needs a sampling whose own event knows it.
    """

    def init(self, key: Key[Array, ""], params: Params) -> Any:
        """The state before the first update.

        Args:
            key: scalar key, used for this noise and nothing else.
            params: pytree of arrays shaped like the sums.

        Returns:
            A pytree of arrays.
        """
        ...

    def update(self, state: Any, sums: Any, scale: Float[Array, ""]) -> tuple[Any, Any]:
        """Noise on one sum.

        Args:
            state: from `init` or the update before.
            sums: pytree of float32 arrays.
            scale: float32 scalar, above 0. The noise multiplier times the sensitivity of `sums`; NaN where a traced
                sensitivity can't be hidden, and what is returned must then be NaN throughout.

        Returns:
            The noisy sums and the next state.
        """
        ...

    def event(self, noise_multiplier: float) -> "DpEvent":
        """The dp-accounting event of one update, of a sum that one record moves by 1, at `scale=noise_multiplier`."""
        ...

    def in_words(self, noise_multiplier: float) -> str:
        """The noise in a statement: "Gaussian noise of standard deviation 1.1 times that norm"."""
        ...

    def label(self, noise_multiplier: float) -> str:
        """The noise in a ledger's entry: "noise multiplier 1.1"."""
        ...


def check_noise(value: Any) -> None:
    """Refuse what is no noise; a class instead of its value, and a value that can't be hashed, too."""
    if isinstance(value, type) or not isinstance(value, Noise):
        raise UsageError(
            f"noise={value!r:.200} is no noise: give jaxdp.noise.Gaussian(), or a frozen dataclass with the methods of "
            "jaxdp.noise.Noise"
        )
    _checks.hashable("noise", value)
