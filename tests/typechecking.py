"""The checker that executes jaxdp's annotations in the tests; an int passes for a float, as PEP 484 says.

Making one takes longer than most calls: it is made where a function is first called, which most are not in any one process, and
of functions that are defined in another once for all that are alike.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from beartype import BeartypeConf, beartype

_by_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))
_made: dict[Any, tuple[Callable[..., Any] | None, dict[str, Any]]] = {}


def checked(function: FunctionType) -> Callable[..., Any]:
    """A function whose arguments and result are held to the same annotations, which is all that jaxtyping makes of one."""
    made: Callable[..., Any] | None = None

    def at_first_call(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        if made is None:
            made = _checked(function)
        return made(*args, **kwargs)

    return at_first_call


def _checked(function: FunctionType) -> Callable[..., Any]:
    defaults = len(function.__defaults__ or ()), frozenset(function.__kwdefaults__ or ())
    alike = function.__module__, function.__qualname__, function.__code__, defaults
    made, annotations = _made.get(alike, (None, {}))
    if made is None or annotations != function.__annotations__:
        annotations = dict(function.__annotations__)
        made = _by_beartype(function)
        _made[alike] = made, annotations
    return made
