"""Which events an accountant counts as often as they were made.

dp-accounting's accountants walk through an event with a count, and not each of them uses it for each kind: its PLD accountant
takes a randomized response for one, however often it is repeated. What stands in the two lists was compared with the same events
composed one by one, by count, in lists and nested; what doesn't is left to another accountant, or refused.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_BY_BOTH = (
    "NoOp",
    "NonPrivate",
    "SelfComposed",
    "Composed",
    "Gaussian",
    "PoissonSampled",
    "Laplace",
    "RandomizedResponse",
)
_BY_RDP = (*_BY_BOTH, "ZC", "RepeatAndSelect", "SingleEpochTreeAggregation")
_BY_PLD = (*_BY_BOTH, "DiscreteLaplace", "MixtureOfGaussians", "TruncatedSubsampledGaussian")
MOST_COPIES = 64  # of a randomized response, which the PLD accountant is told one by one


def as_counted(event: "DpEvent", accountant: str) -> "DpEvent | None":
    """The event as the accountant counts it rightly; None where it doesn't, or where that isn't known."""
    from dp_accounting import dp_event

    known = tuple(f"{name}DpEvent" for name in (_BY_PLD if accountant == "pld" else _BY_RDP))
    copies = 0

    def told(part: Any, times: int) -> "DpEvent | None":
        nonlocal copies
        if type(part) is not getattr(dp_event, type(part).__name__, None) or type(part).__name__ not in known:
            return None
        if isinstance(part, dp_event.SelfComposedDpEvent):
            if part.count == 0:
                return dp_event.NoOpDpEvent()
            inner = told(part.event, times * part.count)
            if inner is None or not (accountant == "pld" and holds_a_response(inner)):
                return inner and dp_event.SelfComposedDpEvent(inner, part.count)
            return dp_event.ComposedDpEvent([inner] * part.count)
        if isinstance(part, dp_event.ComposedDpEvent):
            parts = [each for each in (told(each, times) for each in part.events) if each is not None]
            if len(parts) < len(part.events):
                return None
            some = [each for each in parts if not isinstance(each, dp_event.NoOpDpEvent)]
            if len(some) > 1 or len(some) == len(parts):
                return dp_event.ComposedDpEvent(some)
            return (some or parts)[0]
        if isinstance(part, dp_event.RandomizedResponseDpEvent):
            if part.noise_parameter == 1:
                return dp_event.NoOpDpEvent()
            copies += times
            return part if accountant != "pld" or copies <= MOST_COPIES else None
        if isinstance(part, dp_event.LaplaceDpEvent) and part.noise_multiplier == 0:
            return dp_event.NonPrivateDpEvent()
        if isinstance(part, dp_event.MixtureOfGaussiansDpEvent):
            moves = [(s, p) for s, p in zip(part.sensitivities, part.sampling_probs, strict=True) if s]
            if any(s < 0 for s, _ in moves) or not any(p for _, p in moves):
                return None if moves else dp_event.NoOpDpEvent()
        if getattr(part, "sampling_probability", 1) == 0:
            return dp_event.NoOpDpEvent()
        if isinstance(part, dp_event.PoissonSampledDpEvent):
            inner = told(part.event, 1)
            if inner is None or isinstance(inner, dp_event.NoOpDpEvent):
                return inner
            return dp_event.PoissonSampledDpEvent(part.sampling_probability, inner)
        if isinstance(part, dp_event.RepeatAndSelectDpEvent):
            inner = told(part.event, 1)
            return inner and dp_event.RepeatAndSelectDpEvent(inner, part.mean, part.shape)
        return part

    return told(event, 1)


def holds_a_response(event: Any) -> bool:
    """Whether an event is, or has in it, a randomized response."""
    from dp_accounting import dp_event

    if isinstance(event, dp_event.ComposedDpEvent):
        return any(map(holds_a_response, event.events))
    inner = getattr(event, "event", None)
    return isinstance(event, dp_event.RandomizedResponseDpEvent) or (inner is not None and holds_a_response(inner))
