"""The ledger: everything that touched the data, composed into one total."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import _checks
from .._errors import UsageError
from ._adjacency import ADJACENCIES, UNITS
from ._epsilon import (
    ACCOUNTANTS,
    PLD_INTERVAL,
    Spent,
    accountants_of,
    composed_by,
    event_epsilon,
    no_smaller,
    prepared_for,
    rounded_up,
    spent_by,
)
from ._events import event_from_dict, event_to_dict, with_float_noise
from ._grid import affordable_interval
from ._kinds import holds_a_response
from ._reach import BeyondReachError, delta_left

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_SHARES = np.linspace(0.1, 0.9, 9)  # of delta, that one family of mechanisms may get where two are added up


@dataclass(frozen=True)
class LedgerEntry:
    """One expense: what it was, in words, and its dp-accounting event.

    `nonce` names the randomness that was spent, where that is known: two releases with one noise hide nothing of their
    difference, so that no ledger holds a nonce twice.
    """

    label: str
    event: "DpEvent"
    nonce: str | None = None

    def __post_init__(self) -> None:
        _checks.text("label", self.label)
        if self.nonce is not None:
            _checks.text("nonce", self.nonce)
        with_float_noise(self.event)


@dataclass(frozen=True)
class Total:
    """The cost of a whole ledger: (ε, δ), and the parts that add up to it, one for each accountant that was needed."""

    epsilon: float
    delta: float
    parts: tuple[tuple[Spent, tuple[str, ...]], ...]

    def in_words(self) -> str:
        """How the total came about."""
        named = [
            f"({rounded_up(spent.epsilon)}, {no_smaller(spent.delta)}) by {spent.accountant.upper()} for {'; '.join(labels)}"
            + ("" if spent.interval is None else f" (an upper bound, in coarse steps of {spent.interval:g})")
            for spent, labels in self.parts
        ]
        if len(named) < 2:
            return "one accountant composes all of it: " + "".join(named)
        return "no accountant of dp-accounting composes all of it, so epsilons and deltas are added: " + ", and ".join(
            named
        )


@dataclass(frozen=True)
class Ledger:
    """All that has been spent so far, and by whom. Immutable: `ledger.add(event, label)` is a new ledger.

    Adaptive clipping is not an entry of its own: its count and its sum are one Gaussian mechanism, with the noise
    multiplier that `jaxdp.DPSGD` accounts.

    Args:
        entries: the expenses.
        adjacency: the relation under which all of them hold.
        unit: what is protected: "example", or "user" with all their records.

    Examples:
        >>> from jaxdp.accounting import Ledger, gaussian_event, poisson_event
        >>> ledger = Ledger().add(poisson_event(noise_multiplier=1.1, sample_rate=0.01, steps=100), "100 steps of DP-SGD")
        >>> print(f"{ledger.epsilon(delta=1e-5).epsilon:.3f}")
        0.956
        >>> ledger = ledger.add(gaussian_event(noise_multiplier=20.0), "the mean image")
        >>> print(f"{ledger.total(delta=1e-5).epsilon:.3f}")  # by the tighter accountant
        0.572
    """

    entries: tuple[LedgerEntry, ...] = ()
    adjacency: str = "add_or_remove_one"
    unit: str = "example"

    def __post_init__(self) -> None:
        _checks.one_of("adjacency", self.adjacency, ADJACENCIES)
        _checks.one_of("unit", self.unit, UNITS)
        _checks.instance("entries", self.entries, tuple, "give a tuple of LedgerEntry, or begin with Ledger() and add")
        for entry in self.entries:
            _checks.instance("an entry", entry, LedgerEntry, "give LedgerEntry(label, event)")
        known: dict[str, str] = {}
        for entry in self.entries:
            if entry.nonce is None:
                continue
            if entry.nonce in known:
                raise UsageError(
                    f"the ledger has two entries of one nonce, {known[entry.nonce]!r} and {entry.label!r}: their noise may "
                    "be the same (one seed and one description of the run, or one key twice), so that their difference has none, "
                    "and their total would be false. Give each run a key of its own, such as jaxdp.key_from_entropy(), or count "
                    "a run that is in both ledgers once"
                )
            known[entry.nonce] = entry.label

    def add(self, event: "DpEvent", label: str, *, nonce: str | None = None) -> "Ledger":
        """A ledger with one more entry; this one stays as it is.

        Args:
            event: what it costs.
            label: what it was.
            nonce: a name for the randomness that was spent, the same for the same randomness, from which it can't be guessed.

        Raises:
            UsageError: for what is not a dp-accounting event, and for a nonce that the ledger has.
        """
        return replace(self, entries=(*self.entries, LedgerEntry(label, with_float_noise(event), nonce)))

    def extend(self, other: "Ledger") -> "Ledger":
        """A ledger with the entries of both; each of them stays as it is.

        Raises:
            UsageError: where they hold under other relations or for other units, unless one is `Ledger()`, and where both have an
                entry of one nonce.
        """
        _checks.instance("other", other, Ledger, "give a jaxdp.accounting.Ledger")
        if self == Ledger():  # nothing spent, and nothing said of what will be
            return other
        self.check_like(other)
        return replace(self, entries=(*self.entries, *other.entries))

    def check_like(self, other: "Ledger") -> None:
        """Refuse a ledger whose entries hold under another relation or for another unit: a total would hold for neither."""
        _checks.instance("ledger", other, Ledger, "give a jaxdp.accounting.Ledger")
        for name in ("adjacency", "unit"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if other != Ledger() and ours != theirs:
                raise UsageError(
                    f"a ledger with {name}={ours!r} can't take entries with {name}={theirs!r}: account both under one {name}"
                )

    @property
    def event(self) -> "DpEvent":
        """All entries as one dp-accounting event."""
        from dp_accounting import ComposedDpEvent, NoOpDpEvent

        events = [entry.event for entry in self.entries]
        if not events:
            return NoOpDpEvent()
        return events[0] if len(events) == 1 else ComposedDpEvent(events)

    def epsilon(self, *, delta: float, accountant: str = "rdp") -> Spent:
        """The cost of all entries together by one accountant, as `jaxdp.accounting.event_epsilon` gives."""
        return event_epsilon(self.event, delta=delta, accountant=accountant, adjacency=self.adjacency)

    def total(self, *, delta: float, accountant: str | None = None) -> Total:
        """The cost of all entries together, whether or not one accountant can compose them all.

        Where none can, entries with RDP alone and entries with PLD alone are composed apart and their (ε, δ) added; those that
        have both go where the total is smaller; δ is divided between the two so that the total is smallest.

        Args:
            delta: the δ of the total, in (0, 1).
            accountant: the one to use where it can compose all; by default the tighter one.

        Returns:
            A `Total`, which says which accountant was used for what.

        Raises:
            UsageError: for a delta out of range, or an entry that no accountant can account.
        """
        _checks.delta(delta)
        names = ACCOUNTANTS if accountant is None else (_checks.one_of("accountant", accountant, ACCOUNTANTS),)
        delta_left(self.event, delta, self.adjacency)  # refuses before anything is composed
        able = [name for name in accountants_of(self.event, self.adjacency) if name in names]
        if able:
            spent = min((self.epsilon(delta=delta, accountant=name) for name in able), key=lambda each: each.epsilon)
            return Total(spent.epsilon, delta, ((spent, tuple(entry.label for entry in self.entries)),))
        by_entry = [accountants_of(entry.event, self.adjacency) for entry in self.entries]
        for entry, able_one in zip(self.entries, by_entry, strict=True):
            if not able_one:
                others = [each for each in ADJACENCIES if accountants_of(entry.event, each)]
                fix = (
                    f"it can under {' or '.join(others)}: keep it in a ledger of that adjacency; the two have no total"
                    if others
                    else "leave it out"
                )
                raise UsageError(
                    f"no accountant of dp-accounting can account the ledger's {entry.label!r} under {self.adjacency}; {fix}"
                )
        preferred = [[prefer if prefer in able else able[0] for able in by_entry] for prefer in ("rdp", "pld")]
        # Responses may be counted under another relation than what stands beside them, and by an accountant of their own.
        apart = [
            ["rdp" if holds_a_response(entry.event) == first else "pld" for entry in self.entries]
            for first in (True, False)
        ]
        different = dict.fromkeys(map(tuple, (*preferred, *apart)))
        added = [total for names in different if (total := self._added(delta, names)) is not None]
        if not added:
            raise UsageError(
                "no two accountants of dp-accounting can account the ledger between them: RDP has no figure for some of its "
                "entries, and PLD can't count all of the others; keep them in two ledgers, and add their epsilons and deltas"
            )
        return min(added, key=lambda total: total.epsilon)

    def _added(self, delta: float, accountant_of: Sequence[str]) -> Total | None:
        """The total where each entry is left to the accountant named for it, of two; None where one can't take all of its own."""
        parts = []
        for name in ("rdp", "pld"):
            entries = [entry for entry, its in zip(self.entries, accountant_of, strict=True) if its == name]
            event = replace(self, entries=tuple(entries)).event
            prepared = prepared_for(name, event, self.adjacency)
            if prepared is None or name not in accountants_of(event, self.adjacency):
                return None
            interval = affordable_interval(prepared[1], self.adjacency, PLD_INTERVAL) if name == "pld" else PLD_INTERVAL
            composed = composed_by(name, event, self.adjacency, interval)
            coarse = interval if interval > PLD_INTERVAL else None
            parts.append((name, event, composed, coarse, tuple(entry.label for entry in entries)))
        candidates: list[tuple[float, list[Spent]]] = []
        refused: BeyondReachError | None = None
        for share in _SHARES:
            try:
                spent = [
                    replace(spent_by(composed, name, event, part * delta, self.adjacency), interval=coarse)
                    for (name, event, composed, coarse, _), part in zip(parts, (share, 1 - share), strict=True)
                ]
            except BeyondReachError as error:  # too little of δ for noise that ends; another share may do
                refused = error
            else:
                candidates.append((sum(each.epsilon for each in spent), spent))
        if refused is not None and not candidates:
            raise BeyondReachError(
                f"delta={delta:g} is divided between RDP and PLD here, and no part is enough: {refused}"
            )
        epsilon, spent = min(candidates, key=lambda each: each[0])
        return Total(epsilon, delta, tuple((each, part[-1]) for each, part in zip(spent, parts, strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain dicts and lists, for JSON."""
        entries = [
            {"label": entry.label, "event": event_to_dict(entry.event)}
            | ({} if entry.nonce is None else {"nonce": entry.nonce})
            for entry in self.entries
        ]
        return {"adjacency": self.adjacency, "unit": self.unit, "entries": entries}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Ledger":
        """The inverse of `to_dict`; raises `UsageError` where `description` is not a ledger."""
        try:
            entries = [
                (entry["label"], entry["event"], entry.get("nonce")) for entry in _listed(description["entries"])
            ]
            adjacency, unit = description["adjacency"], description["unit"]
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            if isinstance(description, dict) and isinstance(description.get("ledger"), dict):
                raise UsageError('not a ledger, but it holds one: give its "ledger"') from error
            raise UsageError(
                f"not a ledger: expected adjacency, unit, and entries with a label and an event; found {description!r}"
            ) from error
        _refuse_others(description, "adjacency", "unit", "entries")
        for entry in description["entries"]:
            _refuse_others(entry, "label", "event", "nonce")
        of = lambda label, event, nonce: LedgerEntry(label, event_from_dict(event), nonce)
        return cls(tuple(of(*entry) for entry in entries), adjacency, unit)

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict()))


def _refuse_others(description: dict[str, Any], *known: str) -> None:
    """A field that nobody reads could say that something was spent more than once."""
    if others := set(description) - set(known):
        raise UsageError(f"a ledger's field {sorted(map(str, others))[0]!r} is unknown: known are {', '.join(known)}")


def _listed(entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        raise TypeError("entries are a list")
    return entries


jax.tree_util.register_static(Ledger)  # part of a training state, and no array
