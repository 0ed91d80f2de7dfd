"""Descriptions of mechanisms as dp-accounting events, and their form in JSON.

Numbers reach dp-accounting as plain `float` and `int`: inside a Poisson-sampled event a noise multiplier of another type
makes dp-accounting 0.6.0 drop the composition around it, and report 2.10 where 5.26 is true.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _checks
from .._errors import UsageError
from ..noise import Gaussian

if TYPE_CHECKING:
    from dp_accounting import DpEvent


_COUNTS = (
    "count",
    "dataset_size",
    "truncated_batch_size",
    "source_dataset_size",
    "sample_size",
    "num_buckets",
    "sensitivity",  # of discrete Laplace noise
    "step_counts",
)
_PROBABILITIES = ("sampling_probability", "sampling_probs")
_LARGEST = 1e100  # the accountants square numbers, and multiply squares
_GAUSSIAN = Gaussian()
_OFF = 1e-9  # that probabilities may be, together
_SEVERAL = ("events", "sensitivities", "sampling_probs")
_MAYBE_SEVERAL = (*_SEVERAL, "step_counts")
_MAYBE_INFINITE = ("shape", "sensitivities")  # of a search's distribution; of a mixture, whose shifts have signs


def poisson_event(*, noise_multiplier: _checks.Real, sample_rate: _checks.Real, steps: _checks.Count) -> "DpEvent":
    """`steps` Gaussian mechanisms, each on a Poisson sample: DP-SGD's event.

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

    return repeated(dp.PoissonSampledDpEvent(_rate(sample_rate), _GAUSSIAN.event(noise_multiplier)), steps)


def truncated_poisson_event(
    *,
    noise_multiplier: _checks.Real,
    sample_rate: _checks.Real,
    num_examples: _checks.Count,
    truncated_batch_size: _checks.Count,
    steps: _checks.Count,
) -> "DpEvent":
    """`steps` Gaussian mechanisms, each on at most `truncated_batch_size` examples, chosen at random, of a Poisson sample.

    Args:
        noise_multiplier: σ, standard deviation of the noise over the sensitivity; above zero.
        sample_rate: the probability with which each example enters each sample before truncation, in (0, 1].
        num_examples: the size of the data; of two neighbouring data sets, that of the larger.
        truncated_batch_size: the most examples that are used.
        steps: how many batches; 0 gives the event that costs nothing.

    Returns:
        `SelfComposedDpEvent(TruncatedSubsampledGaussianDpEvent(...), steps)`, which the PLD accountant composes.

    Raises:
        UsageError: for values out of range.

    References:
        arXiv 2508.15089.
    """
    import dp_accounting as dp

    return repeated(
        dp.TruncatedSubsampledGaussianDpEvent(
            dataset_size=_checks.count("num_examples", num_examples, "give the number of examples"),
            sampling_probability=_rate(sample_rate),
            truncated_batch_size=_checks.count(
                "truncated_batch_size", truncated_batch_size, "give the most that are used"
            ),
            noise_multiplier=_GAUSSIAN.event(noise_multiplier).noise_multiplier,
        ),
        steps,
    )


def gaussian_event(*, noise_multiplier: _checks.Real, times: _checks.Count = 1) -> "DpEvent":
    """`times` Gaussian mechanisms on all of the data, or on disjoint parts of it: a private statistic, a shuffled epoch.

    Args:
        noise_multiplier: σ, standard deviation of the noise over the sensitivity to adding or removing one; above zero.
        times: how often; 0 gives the event that costs nothing.

    Returns:
        `SelfComposedDpEvent(GaussianDpEvent(noise_multiplier), times)`.

    Raises:
        UsageError: for values out of range.
    """
    return repeated(_GAUSSIAN.event(noise_multiplier), times)


def repeated(event: "DpEvent", times: _checks.Count) -> "DpEvent":
    """`event`, `times` times over."""
    import dp_accounting as dp

    number = _checks.whole("steps", times, "give the number of training steps")
    return dp.SelfComposedDpEvent(event, number) if number else dp.NoOpDpEvent()


def rebuilt(event: "DpEvent", change: Callable[["DpEvent"], "DpEvent"]) -> "DpEvent":
    """The event with each event in it, innermost first, replaced by what `change` makes of it."""
    from dp_accounting import DpEvent

    def part(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [part(item) for item in value]
        return rebuilt(value, change) if isinstance(value, DpEvent) else value

    kind = type(event)
    return change(kind(**{name: part(getattr(event, name)) for name in _fields(kind)}))


def with_float_noise(event: Any) -> "DpEvent":
    """The event with every count as a plain `int` and every other number as a `float`, whatever numeric type they came in.

    Raises:
        UsageError: for what is not an event of dp-accounting, and for numbers below zero or too large to be squared, and
            probabilities above one.
    """
    from dp_accounting import DpEvent

    if not isinstance(event, DpEvent):
        raise UsageError(
            f"event={event!r} is not an event of dp-accounting: give run.event, or dp_accounting.GaussianDpEvent(sigma)"
        )

    def change(part: DpEvent) -> DpEvent:
        kind = type(part)
        plain = kind(**{name: _plain(name, getattr(part, name)) for name in _fields(kind)})
        if wrong := _out_of_range(plain):
            raise UsageError(f"{plain!r:.200} is no event of a mechanism: {wrong}")
        return plain

    return rebuilt(event, change)


def event_to_dict(event: "DpEvent") -> dict[str, Any]:
    """The event as plain dicts, lists, strings and numbers, for JSON: `{"type": class name, field: value, ...}`."""
    from dp_accounting import DpEvent

    _checks.instance("event", event, DpEvent, "give an event of dp-accounting, such as run.event")

    def plain(value: Any) -> Any:
        if isinstance(value, DpEvent):
            return {
                "type": type(value).__name__,
                **{name: plain(getattr(value, name)) for name in _fields(type(value))},
            }
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return "inf" if isinstance(value, float) and math.isinf(value) else value

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
            return math.inf if isinstance(value, str) and value == "inf" else value
        kind = getattr(dp_event, str(value.get("type")), None)
        if not (isinstance(kind, type) and issubclass(kind, dp_event.DpEvent)):
            raise UsageError(
                f"{value.get('type')!r} is not an event of dp-accounting: expected a name such as GaussianDpEvent"
            )
        if {"type", *_fields(kind)} != set(value):
            raise UsageError(f"{kind.__name__} needs the fields {_fields(kind)}; found {sorted(set(value) - {'type'})}")
        return kind(**{name: build(value[name]) for name in _fields(kind)})

    return with_float_noise(build(description))


def _out_of_range(event: Any) -> str | None:
    """What is wrong with an event's numbers, each of which is one by itself; None where nothing is."""
    from dp_accounting import dp_event as dp

    if isinstance(event, dp.RepeatAndSelectDpEvent) and (event.mean < 1 or event.shape < 0):
        return "give a mean of 1 or above, and a shape of 0 or above"
    if isinstance(event, dp.DiscreteLaplaceDpEvent) and not (event.noise_parameter > 0 and event.sensitivity):
        return "give a noise_parameter above 0 and a sensitivity of 1 or above"
    if isinstance(event, dp.RandomizedResponseDpEvent) and not (event.noise_parameter <= 1 and event.num_buckets):
        return "give a noise_parameter of 1 at most, and num_buckets of 1 or above"
    if isinstance(event, dp.SingleEpochTreeAggregationDpEvent):
        counts = event.step_counts if isinstance(event.step_counts, list) else [event.step_counts]
        if not (counts and all(counts)):
            return "give step_counts of 1 or above"
    if isinstance(event, dp.MixtureOfGaussiansDpEvent):
        of_each, likely = event.sensitivities, event.sampling_probs
        if len(of_each) != len(likely) or abs(math.fsum(likely) - 1) > _OFF:
            return "give a probability for each sensitivity, of a sum of 1"
    return None


def _plain(name: str, value: Any) -> Any:
    """A field of an event, or several where it has several."""
    if name in _SEVERAL:
        _checks.instance(name, value, (list, tuple), "give a list")
    several = isinstance(value, list | tuple) and name in _MAYBE_SEVERAL
    return [_one(name, item) for item in value] if several else _one(name, value)


def _one(name: str, value: Any) -> Any:
    """A plain `int`, if it counts something, or `float`, neither of them negative; or an event as it is."""
    from dp_accounting import DpEvent

    if name in ("event", "events"):
        _checks.instance(name, value, DpEvent, "give an event of dp-accounting, such as GaussianDpEvent(1.1)")
        return value
    if name in _COUNTS:
        return _checks.whole(name, value, "give a number of 0 or above")
    if name not in _MAYBE_INFINITE:
        number = _checks.non_negative(name, value, "give a number of 0 or above")
        if number > _LARGEST:
            raise UsageError(
                f"{name}={number:g} has a square that floats can't hold: give a smaller number, such as 1.1"
            )
        if name in _PROBABILITIES and number > 1:
            raise UsageError(f"{name}={value} is above 1: give a probability")
        return number
    return _checks.real(name, value, "give a number")


def _rate(value: Any) -> float:
    rate = _checks.positive("sample_rate", value, "give expected batch size over number of examples")
    if rate > 1:
        raise UsageError(f"sample_rate={value} is above 1: a batch can't be expected to exceed the data")
    return rate


def _fields(kind: type) -> list[str]:
    return [field.name for field in getattr(kind, "__attrs_attrs__", ())]
