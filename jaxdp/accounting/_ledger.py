"""The ledger: everything that touched the data, composed into one total."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._errors import UsageError
from ._epsilon import Spent, event_epsilon
from ._events import event_from_dict, event_to_dict

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class LedgerEntry:
    """One expense: what it was, in words, and its dp-accounting event."""

    label: str
    event: "DpEvent"


@dataclass(frozen=True)
class Ledger:
    """What has been spent so far, and by what. Immutable: `ledger.add(event, label)` is a new ledger.

    Example:
        >>> from jaxdp.accounting import Ledger, poisson_event
        >>> ledger = Ledger().add(poisson_event(noise_multiplier=1.1, sample_rate=0.01, steps=100), "100 steps of DP-SGD")
        >>> print(f"{ledger.epsilon(delta=1e-5).epsilon:.3f}")
        0.956
    """

    entries: tuple[LedgerEntry, ...] = ()

    def add(self, event: "DpEvent", label: str) -> "Ledger":
        """A ledger with one more entry."""
        return Ledger((*self.entries, LedgerEntry(label, event)))

    @property
    def event(self) -> "DpEvent":
        """All entries as one dp-accounting event."""
        from dp_accounting import ComposedDpEvent, NoOpDpEvent

        events = [entry.event for entry in self.entries]
        if not events:
            return NoOpDpEvent()
        return events[0] if len(events) == 1 else ComposedDpEvent(events)

    def epsilon(self, *, delta: float, accountant: str = "rdp") -> Spent:
        """What all entries cost together: (ε, δ), as `jaxdp.accounting.event_epsilon` gives."""
        return event_epsilon(self.event, delta=delta, accountant=accountant)

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain dicts and lists, for JSON."""
        return {"entries": [{"label": entry.label, "event": event_to_dict(entry.event)} for entry in self.entries]}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Ledger":
        """The inverse of `to_dict`; raises `UsageError` where `description` is not a ledger."""
        try:
            entries = [(entry["label"], entry["event"]) for entry in description["entries"]]
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"not a ledger: expected entries with a label and an event, found {description!r}"
            ) from error
        return cls(tuple(LedgerEntry(label, event_from_dict(event)) for label, event in entries))
