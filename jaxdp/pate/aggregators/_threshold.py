"""The noisy check that comes before an answer: its parameters, its draw and its cost, for the aggregators that have one.

A check is charged for every query asked, the votes behind it for every query answered: a vote that moves changes the count that
is held against the threshold by at most one, and two of the counts behind it.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int32, Key

from ... import _checks, accounting
from ..._errors import UsageError
from ...noise import standard_normal
from .._bounds import Curves, Orders, gaussian_log_q, gaussian_rdp_given_votes
from .._sanitise import threshold_rdp_given_votes
from ._gaussian import gaussian_votes_event
from ._noisy_max import gaussian_winner, in_range

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_FIXES = {
    "threshold": "give the votes that an answer needs, such as 200",
    "sigma_threshold": "give the standard deviation of the noise on the threshold in votes, such as 150",
    "sigma_max": "give the standard deviation of the noise on the votes, such as 40",
}

_drawn = jax.jit(standard_normal, static_argnums=1)  # one program, not one for each of its hundred operations


def set_checked(mechanism: Any) -> None:
    """Put checked plain numbers in the place of the three parameters that were given."""
    checked = {name: in_range(name, getattr(mechanism, name), fix) for name, fix in _FIXES.items()}
    _checks.set_fields(mechanism, **checked)


def check_threshold_against(threshold: float, teachers: int) -> None:
    """Refuse a threshold that no vote can reach without noise."""
    if threshold > teachers:
        raise UsageError(
            f"threshold={threshold:g} exceeds the {teachers} teachers, so that noise alone would decide: give at most {teachers}"
        )


def winners_behind_check(
    votes: np.ndarray, top: Any, key: Key[Array, ""], *, threshold: float, sigma_threshold: float, sigma_max: float
) -> tuple[Int32[Array, " queries"], Bool[Array, " queries"]]:
    """(the noisy winner of every query, whether the noisy `top` reached the threshold), which tells who is to see it."""
    of_threshold, of_winner = jax.random.split(key)
    noise = jnp.float32(sigma_threshold) * _drawn(of_threshold, top.shape)
    answered = top.astype(jnp.float32) + noise >= threshold
    return gaussian_winner(votes, of_winner, sigma_max), answered


def event_with_checks(*, sigma_threshold: float, sigma_max: float, asked: int, answered: int) -> "DpEvent":
    """The event of so many checks, and of so many winners behind them."""
    import dp_accounting as dp

    return dp.ComposedDpEvent(
        [
            accounting.gaussian_event(noise_multiplier=sigma_threshold, times=asked),
            gaussian_votes_event(sigma_max, answered),
        ]
    )


def rdp_with_checks(
    votes: np.ndarray,
    top: Float64[np.ndarray, " queries"],
    charged: np.ndarray,
    orders: Orders,
    *,
    threshold: float,
    sigma_threshold: float,
    sigma_max: float,
) -> Curves:
    """The data-dependent RDP of each query: its check, on the count `top`, and its votes as far as they are charged."""
    checks = threshold_rdp_given_votes(top, threshold, sigma_threshold, orders)
    winners = gaussian_rdp_given_votes(gaussian_log_q(votes, sigma_max), sigma_max, orders)
    return checks + charged[:, None] * winners
