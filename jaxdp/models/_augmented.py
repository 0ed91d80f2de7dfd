"""Augmentation multiplicity: an example's loss as the mean over several random distortions of its image."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from .. import _checks
from .._types import Example, LossFn, Params
from ..clipping import takes_rng
from ..noise._keys import Domain, own_key
from ._distortion import check_motion, distorted


def augmented(
    loss_fn: LossFn, multiplicity: int, *, turn: float = 0.1, scale: float = 0.08, shift: float = 1.0
) -> LossFn:
    r"""The loss \((x, y) \mapsto \frac1K \sum_k \ell(d_k(x), y)\) for random distortions d, drawn anew for each example and step.

    Its gradient is one example's, clipped once, so that distortions cost no privacy.

    Args:
        loss_fn: `loss_fn(params, (image, label))`, as for `jaxdp.clipped_grad`; one that takes `rng=` gets a key for each.
        multiplicity: K.
        turn: of a distortion at most, as a tangent, as for `jaxdp.models.distorted`.
        scale: likewise, as a fraction of height and width.
        shift: likewise, in pixels.

    Returns:
        `loss(params, (image, label), rng=key)`, with the mean of what `loss_fn` returns.

    Raises:
        UsageError: for a multiplicity that isn't a whole number above 0, and limits that aren't finite and 0 or above.

    References:
        De, Berrada, Hayes, Smith and Balle, "Unlocking high-accuracy differentially private image classification through scale",
        arXiv 2204.13650, section 3.2.
    """
    multiplicity = _checks.count("multiplicity", multiplicity, "give the number of distortions of an example")
    by = check_motion(turn, scale, shift)
    with_rng = takes_rng(loss_fn)

    def loss(params: Params, example: Example, *, rng: Key[Array, ""]) -> Any:
        image, label = example

        def one(key: Key[Array, ""]) -> Any:
            of_motion, of_loss = jax.random.split(key)
            seen = distorted(of_motion, image, **by)
            return loss_fn(params, (seen, label), **({"rng": of_loss} if with_rng else {}))

        keys = jax.random.split(own_key(rng, Domain.AUGMENTED), multiplicity)
        return jax.tree.map(lambda values: jnp.mean(values, axis=0), jax.vmap(one)(keys))

    return loss
