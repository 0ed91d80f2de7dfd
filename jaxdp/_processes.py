"""The processes of one run: what they must agree on, and what the first one tells the others.

Every function here is called by all processes, in the same order: each is a collective operation of JAX's. Where there is one
process alone they do what they say without any.
"""

import hashlib
import json
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from ._errors import UsageError

_FAILED, _WELL = b"-", b"+"
_NAMED = 5  # of what differs, in an error


def several() -> bool:
    """Whether this process is one of several."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that writes and prints; where there are no others, it is."""
    return jax.process_index() == 0


def agree(facts: Mapping[str, bytes | str]) -> None:
    """Go on only where all processes have the same.

    Args:
        facts: what must be the same in all processes that have it, by a name for whoever is told that it isn't. Their SHA-256
            alone leaves the process.

    Raises:
        UsageError: in every process, naming what differs and where, if anything does.
    """
    if not several():
        return
    own = {name: hashlib.sha256(_as_bytes(fact)).hexdigest() for name, fact in facts.items()}
    holders: dict[str, list[tuple[int, str]]] = {}
    for process, theirs in enumerate(json.loads(each) for each in gathered(json.dumps(own).encode())):
        for name, digest in theirs.items():
            holders.setdefault(name, []).append((process, digest))
    said = []
    for name, ((first, expected), *others) in holders.items():
        if where := [process for process, digest in others if digest != expected]:
            said.append(f"{name} ({_in_words(where)} against process {first})")
    if said:
        more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
        raise UsageError(
            f"the processes of this run disagree on {', '.join(said[:_NAMED])}{more}: their draws and noise would not be those "
            "of one run; start all of them with the same command, seed, data and versions of packages"
        )


def gathered(content: bytes) -> list[bytes]:
    """What each process gives, in the order of processes."""
    if not several():
        return [content]
    _check_devices()
    lengths = multihost_utils.process_allgather(np.int32(len(content)))
    padded = np.zeros(max(1, int(lengths.max())), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def from_first(make: Callable[[], bytes]) -> bytes:
    """What the first process makes, in every process; the others make nothing.

    Raises:
        UsageError: in every process, where it is raised in the first; and in the others where an `OSError` is.
    """
    return together(lambda: make() if is_first() else b"")[0]


def together(make: Callable[[], bytes]) -> list[bytes]:
    """What each process makes, in the order of processes, once all are well.

    Raises:
        UsageError: in every process, where `make` raises it in any; its own error where it raises it or an `OSError` itself.
    """
    if not several():
        return [make()]
    error = None
    try:
        own = _WELL + make()
    except (UsageError, OSError) as raised:
        error, own = raised, _FAILED + str(raised).encode()
    made = gathered(own)
    if error is not None:
        raise error
    for i, each in enumerate(made):
        if not each.startswith(_WELL):
            raise UsageError(f"process {i}: {each[1:].decode()}")
    return [each[1:] for each in made]


def _check_devices() -> None:
    """Refuse processes with different numbers of devices, which no array of JAX's could be spread over."""
    counts = np.bincount([device.process_index for device in jax.devices()], minlength=jax.process_count())
    if len(set(counts.tolist())) > 1:
        said = ", ".join(f"process {i}: {count}" for i, count in enumerate(counts))
        raise UsageError(f"the processes of this run have different numbers of devices ({said}): give each as many")


def _as_bytes(fact: bytes | str) -> bytes:
    return fact.encode() if isinstance(fact, str) else fact


def _in_words(processes: list[int]) -> str:
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"
