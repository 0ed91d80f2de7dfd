"""A run as a step reads it: a step and its state know this much of a run, and `DPSGD` makes the step."""

from typing import Protocol, runtime_checkable

import optax
from jaxtyping import Array, Key

from .._types import LossFn
from ..accounting import Ledger
from ..clipping import ClippedGrad
from ..noise import Noise
from ..sampling import Sampler


@runtime_checkable
class Run(Protocol):
    """A run that can be executed and accounted: a frozen dataclass, compared by what it is accounted as."""

    @property
    def num_examples(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def clip_norm(self) -> float: ...

    @property
    def expected_batch_size(self) -> float: ...

    @property
    def noise(self) -> Noise: ...

    @property
    def noise_multiplier_of_sum(self) -> float: ...

    def sampler(self, key: Key[Array, ""]) -> Sampler: ...

    def clipped_grad(self, loss_fn: LossFn, *, has_aux: bool = False, precision: str = "auto") -> ClippedGrad: ...

    def privatize(self, key: Key[Array, ""]) -> optax.GradientTransformationExtraArgs: ...

    def ledger(self, steps: int | None = None, *, nonce: str | None = None) -> Ledger: ...
