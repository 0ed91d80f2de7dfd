"""What the processes of one run must have in common before its first teacher: else their votes are not those of one ensemble."""

from typing import Any

import jax

from .._processes import agree, several
from ..dpsgd._agreement import digest


def agree_on(**facts: Any) -> None:
    """Compare numbers, keys and pytrees of arrays, each by the name of its argument; all processes must call it.

    Raises:
        UsageError: in every process, naming what differs and where.
    """
    if several():
        agree({name: _content(fact) for name, fact in facts.items()})


def _content(fact: Any) -> bytes:
    leaves, structure = jax.tree.flatten(fact)
    return str(structure).encode() + b"".join(map(digest, leaves))
