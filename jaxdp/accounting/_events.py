"""Descriptions of mechanisms as dp-accounting events, and their form in JSON.

Numbers reach dp-accounting as plain `float` and `int`: inside a Poisson-sampled event a noise multiplier of another type
makes dp-accounting 0.6.0 drop the composition around it, and report 2.10 where 5.26 is true.
"""

from typing import TYPE_CHECKING, Any

from .. import _checks
from .._errors import UsageError

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def poisson_event(*, noise_multiplier: _checks.Real, sample_rate: _checks.Real, steps: _checks.Count) -> "DpEvent":
    """`steps` Gaussian mechanisms, each on a Poisson sample: DP-SGD's event, under add-or-remove-one.

    Args:
        noise_multiplier: σ, standard deviation of the noise over the sensitivity; above zero.
        sample_rate: the probability with which each example enters each batch, in (0, 1].
        steps: how many batches; 0 gives the event that costs nothing.

    Returns:
        `SelfComposedDpEvent(PoissonSampledDpEvent(sample_rate, GaussianDpEvent(noise_multiplier)), steps)`.

    Raises:
        UsageError: for values out of range; zero noise among them, whose epsilon would be infinite.

    References:
        Mironov, Talwar and Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism", arXiv 1908.10530.
    """
    import dp_accounting as dp

    sigma = _checks.non_negative("noise_multiplier", noise_multiplier, "give the noise in units of the clip norm")
    if sigma == 0:
        raise UsageError("noise_multiplier=0 adds no noise, so epsilon is infinite: give noise above 0, such as 1.1")
    rate = _checks.positive("sample_rate", sample_rate, "give expected batch size over number of examples")
    if rate > 1:
        raise UsageError(f"sample_rate={sample_rate} is above 1: a batch can't be expected to exceed the data")
    number = int(_checks.non_negative("steps", steps, "give the number of training steps"))
    if number != steps:
        raise UsageError(f"steps={steps} must be a whole number")
    if number == 0:
        return dp.NoOpDpEvent()
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), number)


def event_to_dict(event: "DpEvent") -> dict[str, Any]:
    """The event as plain dicts, lists, strings and numbers, for JSON: `{"type": class name, field: value, ...}`."""
    from dp_accounting import DpEvent

    def plain(value: Any) -> Any:
        if isinstance(value, DpEvent):
            return {
                "type": type(value).__name__,
                **{name: plain(getattr(value, name)) for name in _fields(type(value))},
            }
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value

    return plain(event)


def event_from_dict(description: dict[str, Any]) -> "DpEvent":
    """The inverse of `event_to_dict`.

    Raises:
        UsageError: where `description` doesn't name an event of dp-accounting with all its fields.
    """
    from dp_accounting import dp_event

    def build(value: Any) -> Any:
        if isinstance(value, list):
            return [build(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = getattr(dp_event, str(value.get("type")), None)
        if not (isinstance(kind, type) and issubclass(kind, dp_event.DpEvent)):
            raise UsageError(
                f"{value.get('type')!r} is not an event of dp-accounting: expected a name such as GaussianDpEvent"
            )
        if {"type", *_fields(kind)} != set(value):
            raise UsageError(f"{kind.__name__} needs the fields {_fields(kind)}; found {sorted(set(value) - {'type'})}")
        return kind(**{name: build(value[name]) for name in _fields(kind)})

    return build(description)


def _fields(kind: type) -> list[str]:
    return [field.name for field in getattr(kind, "__attrs_attrs__", ())]
