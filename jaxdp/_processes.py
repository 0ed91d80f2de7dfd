"""What the processes of one run must agree on, and what the first one tells the others.

What talks to the others is called by all of them, in the same order: it is a collective operation of JAX's. Where there is one
process alone it does what it says without any. How they meet and part is in `_meeting`.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Int32

from ._errors import UsageError

_Made = TypeVar("_Made")
_PACKAGES = ("jaxdp-privacy", "jax", "jaxlib", "flax", "optax", "numpy", "dp-accounting")
_AT_ONCE = 2**28  # bytes that are told in one piece
_WORD = 2**31
_NAMED = 5  # of what differs, in an error


class _Own:
    """Whether this process does work of its own just now: a process is in one place, and so is this."""

    work = False


_own = _Own()


def several() -> bool:
    """Whether this process is one of several, which do the same now."""
    return jax.process_count() > 1 and not _own.work


@contextmanager
def by_itself() -> Iterator[None]:
    """Work that this process does without the others, which wait for it in an `on_first`: here it is none of several."""
    _own.work = True
    try:
        yield
    finally:
        _own.work = False


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
            said.append(f"{name} ({in_words(where)} against process {first})")
    if said:
        more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
        raise UsageError(
            f"the processes of this run disagree on {', '.join(said[:_NAMED])}{more}: their draws and noise would not be those "
            "of one run; start all of them with the same command, seed, data and versions of packages"
        )


def versions() -> dict[str, str]:
    """Of the packages on which it depends what a process computes, by their names."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


def other_versions(before: Mapping[str, str]) -> str | None:
    """What is said where something began with other versions than it goes on with; None where it didn't."""
    now = versions()
    differ = [name for name in now if before.get(name) != now[name]]
    began, goes_on = (", ".join(f"{name} {of.get(name)}" for name in differ) for of in (before, now))
    return f"it began with {began}, and goes on with {goes_on}: perhaps not to the same bits" if differ else None


def facts_of_versions() -> dict[str, str]:
    """The same as facts to agree on."""
    return {f"the version of {name}": version for name, version in versions().items()}


def gathered(content: bytes) -> list[bytes]:
    """What each process gives, in the order of processes."""
    if not several():
        return [content]
    _check_devices()
    lengths = [_length(row) for row in multihost_utils.process_allgather(_as_row(len(content)))]
    found: list[list[bytes]] = [[] for _ in lengths]
    longest = max(lengths)
    for start in range(0, longest, _AT_ONCE):
        most = min(_AT_ONCE, longest - start)
        piece = np.frombuffer(content, np.uint8)[start : start + most]
        rows = multihost_utils.process_allgather(np.pad(piece, (0, most - len(piece))))
        for parts, row, length in zip(found, rows, lengths, strict=True):
            parts.append(row[: max(0, length - start)].tobytes())
    return [b"".join(parts) for parts in found]


def broadcast(content: bytes) -> bytes:
    """What the first process gives, in every process."""
    if not several():
        return content
    _check_devices()
    length = _length(multihost_utils.broadcast_one_to_all(_as_row(len(content))))
    parts = []
    for start in range(0, length, _AT_ONCE):
        most = min(_AT_ONCE, length - start)
        given = np.frombuffer(content, np.uint8)[start : start + most] if is_first() else np.zeros(most, np.uint8)
        parts.append(multihost_utils.broadcast_one_to_all(given).astype(np.uint8).tobytes())
    return b"".join(parts)


def from_first(make: Callable[[], bytes]) -> bytes:
    """What the first process makes, in every process, as `on_first`."""
    return broadcast(on_first(make) or b"")


def on_first(make: Callable[[], _Made]) -> _Made | None:
    """What the first process makes there, and None in the others, which make nothing and wait until it is made.

    Raises:
        UsageError: in every process, where it is raised in the first; and in the others where an `OSError` is.
    """
    return all_well(lambda: make() if is_first() else None)


def all_well(make: Callable[[], _Made]) -> _Made:
    """What this process makes, once all processes have made theirs.

    Raises:
        UsageError: in every process, where `make` raises it or an `OSError` in any; in that one its own error.
    """
    if not several():
        return make()
    made, error = None, None
    try:
        made = make()
    except (UsageError, OSError) as raised:
        error = raised
    said = gathered(b"" if error is None else (str(error) or type(error).__name__).encode())
    if error is not None:
        raise error
    for i, line in enumerate(said):
        if line:
            raise UsageError(f"process {i}: {line.decode()}")
    return cast(_Made, made)


def in_words(processes: list[int]) -> str:
    """Their numbers, as a message names them."""
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


def _as_row(length: int) -> Int32[np.ndarray, " 2"]:
    """In two words: JAX has 32 bits for one."""
    return np.array(divmod(length, _WORD), np.int32)


def _length(row: Any) -> int:
    high, low = row
    return int(high) * _WORD + int(low)


def _check_devices() -> None:
    """Refuse processes with different numbers of devices, which no array of JAX's could be spread over."""
    counts = np.bincount([device.process_index for device in jax.devices()], minlength=jax.process_count())
    if len(set(counts.tolist())) > 1:
        said = ", ".join(f"process {i}: {count}" for i, count in enumerate(counts))
        raise UsageError(f"the processes of this run have different numbers of devices ({said}): give each as many")


def _as_bytes(fact: bytes | str) -> bytes:
    return fact.encode() if isinstance(fact, str) else fact
