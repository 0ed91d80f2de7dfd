"""How many canaries an attack calls members: chosen so that a look at the coins can't make a bound too good.

The best of several thresholds is a bound at the significance that each had, times their number; or a threshold is chosen on some
of the canaries, and the bound comes from the others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from .. import _checks
from .._errors import UsageError
from ._canaries import Canaries

_CLOSE = 1e-9  # of a bound, relative or absolute


class Guesses(NamedTuple):
    """What an attack got right: of `canaries`, each a member by a fair coin, it called `guesses` one, and `correct` were."""

    canaries: int
    guesses: int
    correct: int


Rejects: TypeAlias = Callable[[Guesses, float, float], bool]
"""(guesses, x, significance): whether they contradict a claim of x, such as an ε; with one, each smaller one is contradicted."""


@dataclass(frozen=True)
class Bonferroni:
    """The best of several numbers of guesses, each at its part of the significance; the highest scores are the guesses.

    The numbers are fixed before a score is seen: `number` of them from 1 to the canaries, each larger by the same factor.

    Args:
        number: how many; None for each from 1 to the canaries.

    Raises:
        UsageError: for a number below one.
    """

    number: int | None = 10

    def __post_init__(self) -> None:
        if self.number is not None:
            number = _checks.count("number", self.number, "give how many numbers of guesses are tried, or None for all")
            _checks.set_fields(self, number=number)

    def highest(self, rejects: Rejects, given: Canaries, significance: float) -> float:
        """The largest x that the guesses contradict at this significance in all, 0 where they contradict none."""
        correct = np.cumsum(given.members[_ranked(given)])
        m = len(correct)
        numbers = np.arange(1, m + 1)
        if self.number is not None and self.number < m:
            numbers = np.unique(np.rint(np.geomspace(1, m, self.number)).astype(int))
        tried = [Guesses(m, int(r), int(correct[r - 1])) for r in numbers]
        return best_of(rejects, tried, significance / len(tried))[0]


@dataclass(frozen=True)
class Corners:
    """The best of the corners of the ROC's concave hull, each at its part of the significance, as JAX Privacy has it.

    How many corners there are is known from the coins alone, so that the significance is what is meant rather than a bound: for
    comparison with others' figures. `Bonferroni` is as tight without that.
    """

    def highest(self, rejects: Rejects, given: Canaries, significance: float) -> float:
        """The largest x that the guesses contradict, 0 where they contradict none."""
        order = _ranked(given)
        scores = given.scores[order]
        last = np.append(scores[1:] != scores[:-1], True)  # of its score
        wrong = np.concatenate([[0], np.cumsum(~given.members[order])[last]])
        right = np.concatenate([[0], np.cumsum(given.members[order])[last]])
        hull: list[tuple[int, int]] = []
        for point in zip(wrong.tolist(), right.tolist(), strict=True):
            while len(hull) > 1 and _turns_up(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        tried = [Guesses(len(order), x + y, y) for x, y in hull if x + y]
        return best_of(rejects, tried, significance / len(hull))[0]


@dataclass(frozen=True)
class Split:
    """A threshold that is best on some of the canaries, for a bound from the others.

    How many of the others score above it isn't known beforehand. For a delta of zero the bound holds whatever their number; with
    a delta above, and against trade-off functions, the papers prove it for a number that is fixed, as `Bonferroni`'s are. No case
    is known in which that makes a difference.

    Args:
        fraction: how many of the canaries choose, between 0 and 1.
        seed: of the order in which canaries are divided.

    Raises:
        UsageError: for a fraction outside 0 to 1.
    """

    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        fraction = _checks.real(
            "fraction", self.fraction, "give the share of canaries that choose a threshold, such as 0.5"
        )
        if not 0 < fraction < 1:
            raise UsageError(
                f"fraction={self.fraction} leaves no canaries to choose by, or none for the bound: 0.5 is usual"
            )
        _checks.set_fields(
            self, fraction=fraction, seed=_checks.whole("seed", self.seed, "give a whole number from 0 on")
        )

    def highest(self, rejects: Rejects, given: Canaries, significance: float) -> float:
        """The largest x that the guesses contradict at this significance, 0 where they contradict none."""
        order = np.random.default_rng(self.seed).permutation(len(given.scores))
        number = int(self.fraction * len(order))
        chooses, bounds = (Canaries(given.scores[part], given.members[part]) for part in np.split(order, [number]))
        if not len(chooses.scores):
            raise UsageError(f"fraction={self.fraction} of {len(order)} canaries is none: give more of either")
        ranked = _ranked(chooses)
        correct = np.cumsum(chooses.members[ranked])
        tried = [Guesses(len(correct), r, int(v)) for r, v in enumerate(correct, 1)]
        best = best_of(rejects, tried, significance)[1]
        if best is None:
            return 0.0
        said = bounds.scores >= chooses.scores[ranked[best.guesses - 1]]
        found = Guesses(len(said), int(np.sum(said)), int(np.sum(said & bounds.members)))
        return best_of(rejects, [found], significance)[0]


Thresholds: TypeAlias = Bonferroni | Corners | Split


def _ranked(given: Canaries) -> np.ndarray:
    """The canaries' numbers, highest scores first; among equal ones those that were out, so that a tie helps no attack."""
    return np.lexsort((given.members, -given.scores))


def _turns_up(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether the way from a over b to c is no corner of a concave hull."""
    return (b[1] - a[1]) * (c[0] - b[0]) <= (c[1] - b[1]) * (b[0] - a[0])


def best_of(rejects: Rejects, tried: Iterable[Guesses], significance: float) -> tuple[float, Guesses | None]:
    """The largest x that any of them contradicts, each at this significance, and which; the likeliest are looked at first."""
    found, best = 0.0, None
    for guesses in sorted(tried, key=_promise, reverse=True):
        if rejects(guesses, found, significance):
            found, best = _edge(lambda x, guesses=guesses: rejects(guesses, x, significance), found), guesses
    return found, best


def _promise(guesses: Guesses) -> float:
    """By how many standard deviations more than half of the guesses are right."""
    return (guesses.correct - guesses.guesses / 2) / np.sqrt(max(guesses.guesses, 1))


def _edge(contradicted: Callable[[float], bool], low: float) -> float:
    """The largest x that is contradicted, from one that is on."""
    high = max(1.0, 2 * low)
    while contradicted(high):
        low, high = high, 2 * high
    while high - low > _CLOSE * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if contradicted(middle) else (low, middle)
    return low
