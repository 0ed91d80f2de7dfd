"""The noise of a step on its sums: on large ones before several devices add theirs up, on others behind that."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float, Key

from .._spread import Spread
from ..clipping import Change, DrawSums
from ..noise import Gaussian, Noise
from ..noise._gaussian import GaussianInBlocks
from ..transforms import noise_scale, privatize
from ._description import Run


@dataclass(frozen=True)
class NoiseOfStep:
    """A run's noise, and which of it is added where.

    Attributes:
        run: the description.
        noise: the run's own; Gaussian noise in blocks where devices have large parameters that they can share out.
    """

    run: Run
    noise: Noise

    @classmethod
    def of(cls, run: Run, spread: Spread | None, params: Any) -> "NoiseOfStep":
        """The noise of parameters that are spread so; only the Gaussian is known to be the same in blocks."""
        if spread is None or type(run.noise) is not Gaussian or run.noise_multiplier_of_sum == 0:
            return cls(run, run.noise)
        in_blocks = spread.in_blocks(params)
        return cls(run, GaussianInBlocks(in_blocks) if in_blocks else run.noise)

    def before(self, state: Any) -> Change | None:
        """What a device adds to its own sums; `state` is of the noise."""
        noise = self.noise
        if not isinstance(noise, GaussianInBlocks):
            return None

        def add(sums: Any, blocks: Any, sensitivity: Float[Array, ""], state: Any) -> Any:
            scale = noise_scale(self.run.noise_multiplier_of_sum, sensitivity)
            return noise.add_blocks(sums, blocks, state, scale)

        return Change(add, state)

    def behind(self, sums: DrawSums, state: Any, key: Key[Array, ""]) -> tuple[Any, Any]:
        """The noisy means and the next state, of sums that are added up."""
        transform = privatize(
            noise_multiplier=self.run.noise_multiplier_of_sum,
            expected_batch_size=self.run.expected_batch_size,
            key=key,
            noise=self.noise,
        )
        return transform.update(sums.grads, state, sensitivity=sums.sensitivity)
