"""Options without effect: each command has a table of where its options have one, and one check goes through it.

An option that is given and then ignored is a misunderstanding; with `--no-dp`, one about privacy.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from .. import sampling
from .._errors import UsageError
from ._options import flag


class Effect(NamedTuple):
    """Where some options have an effect.

    Attributes:
        of: the options' names.
        where: whether they have one, beside all other options.
        why_not: where they have none, to follow "has no effect".
        instead: what to do but to leave them out; as a function where only another room can tell.
    """

    of: tuple[str, ...]
    where: Callable[[Any], bool]
    why_not: Callable[[Any], str]
    instead: str | Callable[[], str] = ""


CUTTING = Effect(
    ("truncated_batch_size",),
    lambda run: sampling.cuts(run.sampling),
    lambda run: f"with --sampling {run.sampling}, which cuts no batch",
    lambda: f", or give --sampling {' or '.join(filter(sampling.cuts, sampling.NAMES))}",
)


def check_effects(options: Any, typed: Collection[str] | None = None) -> None:
    """Refuse options without effect, by the table `effects` of their class.

    Args:
        options: a command's.
        typed: the names of those that were given; where that isn't known, those count that differ from their defaults.

    Raises:
        UsageError: naming the options, why they have no effect, and what to do.
    """
    for effect in getattr(options, "effects", ()):
        if effect.where(options):
            continue
        given = [name for name in effect.of if (_differs(options, name) if typed is None else name in typed)]
        if given:
            shown = ", ".join(f"{flag(name)}={_in_words(getattr(options, name))}" for name in given)
            out = "leave it out" if len(given) == 1 else "leave them out"
            instead = effect.instead() if callable(effect.instead) else effect.instead
            raise UsageError(
                f"{shown} {'has' if len(given) == 1 else 'have'} no effect {effect.why_not(options)}: {out}{instead}"
            )


def _differs(options: Any, name: str) -> bool:
    default = next(field.default for field in dataclasses.fields(options) if field.name == name)
    return getattr(options, name) != default


def _in_words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
