"""The noise of a step on its sums: on large ones before several devices add theirs up, on others behind that."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float, Key

from .._spread import Spread
from ..clipping import Change, DrawSums
from ..noise._gaussian import GaussianInBlocks, in_blocks
from ..transforms import noise_scale, privatize
from ._description import Run


@dataclass(frozen=True)
class NoiseOfStep:
    """A run's noise, and which of it is added where.

    Attributes:
        run: the description.
        blocks: the run's noise where devices share out that of large parameters; None where they don't.
    """

    run: Run
    blocks: GaussianInBlocks | None

    @classmethod
    def of(cls, run: Run, spread: Spread | None, params: Any) -> "NoiseOfStep":
        """The noise of parameters that are spread so."""
        if spread is None or run.noise_multiplier_of_sum == 0:
            return cls(run, None)
        return cls(run, in_blocks(run.noise, spread.in_blocks(params)))

    def before(self, state: Any) -> Change | None:
        """What a device adds to its own sums; `state` is of the noise."""
        if self.blocks is None:
            return None
        add_blocks = self.blocks.add_blocks

        def add(sums: Any, blocks: Any, sensitivity: Float[Array, ""], state: Any) -> Any:
            return add_blocks(sums, blocks, state, noise_scale(self.run.noise_multiplier_of_sum, sensitivity))

        return Change(add, state)

    def behind(self, sums: DrawSums, state: Any, key: Key[Array, ""]) -> tuple[Any, Any]:
        """The noisy means and the next state, of sums that are added up."""
        transform = privatize(
            noise_multiplier=self.run.noise_multiplier_of_sum,
            expected_batch_size=self.run.expected_batch_size,
            key=key,
            noise=self.run.noise if self.blocks is None else self.blocks,
        )
        return transform.update(sums.grads, state, sensitivity=sums.sensitivity)
