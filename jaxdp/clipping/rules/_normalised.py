"""Every gradient, short ones too, is brought to almost the same length."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from ... import _checks
from ..._errors import UsageError
from ._flat import Flat
from ._rule import ROUND_DOWN, refuse_no_clipping


@dataclass(frozen=True, kw_only=True)
class Normalised:
    r"""Scale by \(C / (\lVert g\rVert + \gamma)\), short gradients too: no clip norm to tune. Sensitivity C.

    Args:
        stability: γ above zero, in the units of the gradient; what keeps short gradients apart from noise.

    References:
        Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger", arXiv 2206.07136,
        AUTO-S, section 4.
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        fix = "give γ in the units of the gradient's norm, such as 0.01"
        stability = _checks.positive("stability", self.stability, fix)
        if not 1e-30 <= stability <= 1e30:
            raise UsageError(f"stability={stability} must lie between 1e-30 and 1e30: {fix}")
        _checks.set_fields(self, stability=stability)

    def check(self, clip_norm: float) -> None:
        """Refuse a clip norm of infinity."""
        refuse_no_clipping(self, clip_norm)

    groups = Flat.groups

    def factors(self, upper: Float[Array, " B"], clip_norm: Float[Array, ""]) -> Float[Array, " B"]:
        """float32 [B]: the factors for norms of at most `upper`, not used where that is NaN or inf."""
        factors = clip_norm * jnp.float32(ROUND_DOWN) / (upper + jnp.float32(self.stability))
        return jnp.minimum(factors, jnp.finfo(jnp.float32).max)  # a zero gradient stays zero, whatever C over γ

    def in_words(self, clip_norm: float) -> str:
        """How gradients were scaled, for a statement."""
        return f"divided by its L2 norm plus {self.stability:g} and brought to an L2 norm below {clip_norm:g}"

    in_run = Flat.in_run
    noise_multiplier_of_sum = Flat.noise_multiplier_of_sum
    init = Flat.init
    clip_norm_now = Flat.clip_norm_now
    observe = Flat.observe
    advance = Flat.advance
