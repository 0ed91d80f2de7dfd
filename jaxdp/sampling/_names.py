"""The short names of samplings: one line for each of the room's own, and nowhere else is one told from another by its name."""

from dataclasses import fields
from typing import Any

from .. import _checks
from .._errors import UsageError
from ._poisson import Poisson
from ._sampling import Sampling
from ._shuffled import Shuffled
from ._truncated import TruncatedPoisson

SAMPLINGS: tuple[type[Any], ...] = (Poisson, TruncatedPoisson, Shuffled)

_BY_NAME = {kind.name: kind for kind in SAMPLINGS}
NAMES = tuple(_BY_NAME)
CUT = "truncated_batch_size"  # the field of those that cut a draw, and of a run that names its sampling


def kind_of(name: str) -> type[Any]:
    """The class of the sampling with that short name; its words, relations and epochs can be asked without a value."""
    return _BY_NAME[_checks.one_of("sampling", name, NAMES)]


def cuts(name: str) -> bool:
    """Whether the sampling with that short name needs `truncated_batch_size`."""
    return CUT in _numbers_of(kind_of(name))


def resolve(given: Any, truncated_batch_size: Any) -> tuple[Sampling, int | None]:
    """A sampling's value, from a value or a short name, and the most examples of its batches; None where it cuts none.

    Args:
        given: a sampling, or the short name of one.
        truncated_batch_size: beside a short name that needs it; beside a value nothing, or the value's own.

    Raises:
        UsageError: for what is neither, and where the name and the number don't go together.
    """
    if isinstance(given, str):
        if cuts(given) != (truncated_batch_size is not None):
            raise _does_not_fit(given, truncated_batch_size)
        given = kind_of(given)(*([truncated_batch_size] if cuts(given) else []))
        return given, getattr(given, CUT, None)
    if isinstance(given, type) or not isinstance(given, Sampling):
        raise UsageError(
            f"sampling={given!r:.200} is no sampling: give one of {', '.join(map(repr, NAMES))}, or a frozen dataclass with what "
            "jaxdp.sampling.Sampling has"
        )
    _checks.hashable("sampling", given)
    own = getattr(given, CUT) if type(given) in SAMPLINGS and cuts(given.name) else None
    if truncated_batch_size is not None:
        most = _checks.count(CUT, truncated_batch_size, "give the most examples of a batch")
        if most != own:
            raise _does_not_fit(given.name, truncated_batch_size)
    return given, own


def short_name(sampling: Sampling) -> str | None:
    """The name by which `resolve` gives this value, beside its `truncated_batch_size`; None for a sampling of a user's own."""
    return sampling.name if type(sampling) in SAMPLINGS else None


def words_of_batch_size(name: Any) -> str:
    """What a table says behind a batch size that was drawn so; nothing of a name that isn't known."""
    return f" {_BY_NAME[name].of_batch_size}" if name in _BY_NAME else ""


def _numbers_of(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def _does_not_fit(given: Any, truncated_batch_size: Any) -> UsageError:
    return UsageError(
        f"sampling={given!r} with truncated_batch_size={truncated_batch_size}: give the most examples "
        "of a batch with sampling='truncated_poisson', and with that alone"
    )
