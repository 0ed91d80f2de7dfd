"""The rule of DP-SGD: a gradient longer than the clip norm is scaled to it, a shorter one stays."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ..._errors import UsageError
from ..._types import Params
from ._rule import ClipRule, Groups


@dataclass(frozen=True)
class Flat:
    r"""Scale by \(\min(1, C / \lVert g\rVert)\): the rule of DP-SGD. Sensitivity C.

    References:
        Abadi et al., "Deep Learning with Differential Privacy", arXiv 1607.00133, algorithm 1.
    """

    def check(self, clip_norm: float) -> None:
        """Takes every clip norm; `inf` means no clipping."""

    def in_run(self: ClipRule, expected_batch_size: float) -> ClipRule:
        """The rule itself."""
        return self

    def noise_multiplier_of_sum(self: ClipRule, total: float) -> float:
        """The total: the sum of gradients is the one look at the data."""
        return total

    def groups(self: ClipRule, params: Params) -> Groups:
        """All leaves in one group."""
        return Groups.one(params)

    def factors(self: ClipRule, upper: Float[Array, " B"], clip_norm: Float[Array, ""]) -> Float[Array, " B"]:
        """float32 [B]: the factors for norms of at most `upper`, not used where that is NaN or inf."""
        return jnp.minimum(jnp.float32(1), clip_norm / jnp.maximum(upper, jnp.finfo(jnp.float32).tiny))

    def in_words(self, clip_norm: float) -> str:
        """How gradients were scaled, for a statement."""
        return f"clipped to L2 norm {clip_norm:g}"

    def init(self: ClipRule, clip_norm: float, key: Key[Array, ""]) -> None:
        """No state."""

    def clip_norm_now(self: ClipRule, state: Any, clip_norm: float) -> float:
        """The clip norm that was given."""
        if state is not None:
            raise UsageError(f"rule_state was passed, but {type(self).__name__} has no state: leave it out")
        return clip_norm

    def observe(
        self: ClipRule, norms: Float[Array, " B"], mask: Bool[Array, " B"], clip_norm: Float[Array, ""]
    ) -> None:
        """Nothing."""

    def advance(self: ClipRule, state: Any, observed: Any) -> None:
        """No state."""
