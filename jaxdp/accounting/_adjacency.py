"""Adjacency: which two data sets are neighbours, and what dp-accounting makes of each relation.

- "add_or_remove_one": one is the other with one record added or removed. The default, and what the literature means most.
- "replace_special": one is the other with one record blanked in its place, so that it contributes nothing. The number of
  records is the same in both, and so are the places of all others: the relation under which shuffled epochs can be
  accounted. One Gaussian release costs what it costs under add-or-remove-one.
- "replace_one": one is the other with one record exchanged for any other, which moves a sum by twice the clip norm.

dp-accounting's PLD accountant doubles a Gaussian's sensitivity under replace-one; its RDP accountant does not (10.00 against
4.73 for 100 releases at σ = 10), so that what goes to the RDP accountant here has its noise multiplier halved. RDP curves of
other mechanisms but randomized responses under replace-one are refused, since nothing says for which sensitivity they were meant.

Under replace-special dp-accounting takes a blanked record to respond at random, so that what it loses is about half of what one
answer tells from another (0.69 against 1.10 for ε = ln 3). Here nobody responds so: a response costs what it costs under
replace-one, and Gaussian noise beside it what it costs under replace-special.
"""

from typing import TYPE_CHECKING

from .. import _checks
from .._errors import UsageError
from ._events import rebuilt
from ._kinds import holds_a_response

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation

ADJACENCIES = ("add_or_remove_one", "replace_special", "replace_one")
UNITS = ("example", "user")

IN_WORDS = {
    "add_or_remove_one": "one is the other with one {unit} added or removed",
    "replace_special": "one is the other with one {unit} blanked in its place, so that it contributes nothing",
    "replace_one": "one is the other with one {unit} replaced by any other",
}


def relation(adjacency: str) -> "NeighboringRelation":
    """dp-accounting's name of it."""
    from dp_accounting import NeighboringRelation

    _checks.one_of("adjacency", adjacency, ADJACENCIES)
    return NeighboringRelation[adjacency.upper()]


def as_told(event: "DpEvent", accountant: str, adjacency: str) -> "tuple[DpEvent, str]":
    """What an accountant of dp-accounting is told, event and relation, so that it counts what `event` costs under `adjacency`.

    Raises:
        UsageError: where anything but Gaussian mechanisms on all of the data, randomized responses, and their compositions is in
            an event that it would have to count otherwise than it does.
    """
    if adjacency == "replace_one" and accountant != "pld":
        return _with_gaussians(event, 0.5), adjacency
    if adjacency == "replace_special" and holds_a_response(event):
        return _with_gaussians(event, 2.0 if accountant == "pld" else 1.0), "replace_one"
    return event, adjacency


def _with_gaussians(event: "DpEvent", scale: float) -> "DpEvent":
    """With each Gaussian's noise multiplier scaled."""
    import dp_accounting as dp

    def change(part: "DpEvent") -> "DpEvent":
        if isinstance(part, dp.GaussianDpEvent):
            return dp.GaussianDpEvent(part.noise_multiplier * scale)
        if isinstance(part, dp.RandomizedResponseDpEvent):  # of one record's answer, whichever it is replaced by
            return part
        if not isinstance(part, (dp.NoOpDpEvent, dp.NonPrivateDpEvent, dp.ComposedDpEvent, dp.SelfComposedDpEvent)):
            raise UsageError(f"the cost of {type(part).__name__} under this relation is not known")
        return part

    return rebuilt(event, change)
