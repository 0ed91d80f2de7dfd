"""Scores of canaries and who of them was in: checks, and the two groups."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import betainc

from .. import _checks
from .._errors import UsageError

_NEVER = 1e-9


class Canaries(NamedTuple):
    """float64 [canaries] scores, higher where the attack says that a canary was in, and bool [canaries], whether it was."""

    scores: Float[np.ndarray, " canaries"]
    members: Bool[np.ndarray, " canaries"]

    @property
    def of_members(self) -> Float[np.ndarray, " in"]:
        """Scores of those that were in."""
        return self.scores[self.members]

    @property
    def of_others(self) -> Float[np.ndarray, " out"]:
        """Scores of those that were not."""
        return self.scores[~self.members]


def canaries(scores: Any, members: Any) -> Canaries:
    """Scores and coins as arrays on the host.

    Raises:
        UsageError: for no canaries, scores that are no numbers, of another length than the coins, or NaN; for coins that are
            not True or False; and for fewer than two canaries that were in or that were out.
    """
    scores = _vector("scores", scores, "give one number a canary, higher where the attack says that it was in")
    members = _vector(
        "members", members, "give True for each canary that was in the training data, False for the others"
    )
    if len(scores) != len(members):
        raise UsageError(f"there are {len(scores)} scores and {len(members)} members: give one of each for a canary")
    if not len(scores):
        raise UsageError("there are no canaries: give one score each, and whether it was in the training data")
    if members.dtype != np.bool_:
        raise UsageError(
            f"members are {members.dtype}: give True for each canary that was in, and False for the others"
        )
    given = scores.astype(np.float64)
    if bad := int(np.sum(np.isnan(given))):
        first = int(np.argmax(np.isnan(given)))
        raise UsageError(
            f"{bad} of {len(given)} scores are NaN, the first of canary {first}: give -inf to a canary of which the attack "
            "says that it was out, whatever the other scores"
        )
    number = int(np.sum(members))
    if min(number, len(members) - number) < 2:
        raise UsageError(
            f"{number} of {len(members)} canaries were in and {len(members) - number} out: an attack needs two or more of each"
        )
    return Canaries(given, members)


def tossed(scores: Any, members: Any) -> Canaries:
    """The same, of canaries that fair coins can have put in and kept out, as a bound from one run assumes.

    Raises:
        UsageError: for what `canaries` refuses, and for more or fewer members than fair coins give in one of a billion tosses.
    """
    given = canaries(scores, members)
    m, fewer = len(given.members), min(np.sum(given.members), np.sum(~given.members))
    if betainc(m - fewer, fewer + 1, 0.5) < _NEVER:
        raise UsageError(
            f"{np.sum(given.members)} of {m} canaries were in, which fair coins don't give: a bound from one run holds where a "
            "fair coin of its own puts each canary in; give those that were out, too, or toss anew"
        )
    return given


def _vector(name: str, value: Any, fix: str) -> np.ndarray:
    array = np.asarray(_checks.array(name, value, fix))
    if array.ndim != 1 or not (array.dtype == np.bool_ or np.issubdtype(array.dtype, np.integer) or _is_float(array)):
        raise UsageError(f"{name} are {array.dtype}{list(array.shape)}: {fix}")
    return array


def _is_float(array: np.ndarray) -> bool:
    return bool(_checks.is_real(array)) and np.can_cast(array.dtype, np.float64)
