"""Terminals that can't show every letter: Greek ones are spelled out there, and nothing ends in a traceback."""

import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAME = "jaxdp-plain"
_PLAIN = {
    "ε": "epsilon",
    "δ": "delta",
    "α": "alpha",
    "σ": "sigma",
    "≤": "<=",
    "≥": ">=",
    "×": "x",
    "…": "...",
    "—": "-",
    "–": "-",
}


@contextmanager
def every_terminal() -> Iterator[None]:
    """Standard output and error write what their encoding lacks in plain letters, until the end of the block."""
    codecs.register_error(_NAME, _plain)
    changed = []
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            changed.append((stream, stream.errors))
            stream.reconfigure(errors=_NAME)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for stream, errors in changed:
            if not stream.closed:
                stream.reconfigure(errors=errors)


def _plain(error: Any) -> tuple[str, int]:
    """The stand-in for letters that can't be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in letters), error.end
