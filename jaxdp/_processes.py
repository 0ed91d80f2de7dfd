"""The processes of one run: how they find each other, what they must agree on, and what the first one tells the others.

What talks to the others is called by all of them, in the same order: it is a collective operation of JAX's. Where there is one
process alone it does what it says without any.

What JAX knows no exception for ends the process: others that never come, and others that are gone while this one isn't talking to
them. So for the first this file has a clock of its own, which ends earlier and says why; the second ends in JAX's own words.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from ._errors import UsageError
from ._interrupts import Interrupted, listen_again

_Made = TypeVar("_Made")
_PACKAGES = ("jaxdp-privacy", "jax", "jaxlib", "flax", "optax", "numpy", "dp-accounting")
_NAMED = 5  # of what differs, in an error
_SECONDS_TO_MEET = 60
_SECONDS_TO_MISS = 40  # without a sign of life of another process, until JAX ends this one
_SECONDS_TO_PART = 10


class _Own:
    """Whether this process does work of its own just now: a process is in one place, and so is this."""

    work = False


_own = _Own()


class Meeting(NamedTuple):
    """Where processes find each other: (HOST:PORT of process 0, how many, which one this is); all None where JAX knows that."""

    coordinator: str | None = None
    number: int | None = None
    own: int | None = None


@contextmanager
def connected(meeting: Meeting) -> Iterator[None]:
    """Be one of several processes, until the end of the block. Nothing may have asked JAX for its devices before.

    Raises:
        UsageError: where they can't find each other. Where the others don't come within a minute the process ends, with a line
            that says so and exit code 2.
        ConnectionError: where another process is gone, found when this one next talks to it; the work is broken off.
    """
    _meet(meeting)
    listen_again()
    with silent_output():
        peers = [json.loads(each) for each in gathered(json.dumps([platform.node(), os.getpid()]).encode())]
    try:
        yield
    except Exception as error:
        if not isinstance(error, jax.errors.JaxRuntimeError) and "Gloo" not in str(error):
            _part(agreed=isinstance(error, (UsageError, OSError)))
            raise
        said = (str(error).splitlines() or [""])[0][:200]
        raise ConnectionError(f"{_gone(peers)}, so that the others can't go on ({said})") from error
    except KeyboardInterrupt as error:
        _part(agreed=isinstance(error, Interrupted))
        raise
    _part(agreed=True)


def _meet(meeting: Meeting) -> None:
    at = f"--coordinator {meeting.coordinator}" if meeting.coordinator else "the coordinator that JAX found"
    others = "the others were" if meeting.own == 0 else "process 0 or another one was"
    line = (
        f"jaxdp: error: {others} not at {at} within {_SECONDS_TO_MEET} s: see that all processes are started, with the same "
        "address, and that it can be reached from here\n"
    )

    def leave() -> None:
        os.write(2, line.encode())
        os._exit(2)

    clock = threading.Timer(_SECONDS_TO_MEET, leave)
    clock.daemon = True
    clock.start()
    try:
        jax.distributed.initialize(
            *meeting,
            initialization_timeout=2 * _SECONDS_TO_MEET,  # at whose end JAX would end the process
            heartbeat_timeout_seconds=_SECONDS_TO_MISS,
            shutdown_timeout_seconds=_SECONDS_TO_PART,
        )
    except (RuntimeError, ValueError) as error:
        said = (str(error).splitlines() or [""])[0][:200]
        if isinstance(error, ValueError) and not meeting.coordinator:
            said = "JAX knows no cluster here, of SLURM, Open MPI, GKE and Cloud TPU"
        fix = "give --coordinator HOST:PORT, of an address of process 0 at which it can listen, --num-processes and --process-id"
        raise UsageError(f"--distributed: the processes can't meet ({said}): {fix}") from error
    finally:
        clock.cancel()


def _part(*, agreed: bool) -> None:
    """Leave the others, once they are at the same point; where they don't come to it, JAX isn't to wait for them."""
    if agreed:
        with suppress(RuntimeError):
            jax.distributed.shutdown()


def _gone(peers: list[tuple[str, int]]) -> str:
    """Which process is gone, as far as can be told from here: those of this host are looked at."""
    others = [i for i in range(len(peers)) if i != jax.process_index()]
    here = [i for i in others if peers[i][0] == platform.node() and not _alive(peers[i][1])]
    found = here or (others if len(others) == 1 else [])
    if not found:
        return f"one of the processes {', '.join(map(str, others))} has died or can't be reached"
    return f"{_in_words(found)} {'has' if len(found) == 1 else 'have'} died" + ("" if here else " or can't be reached")


def _alive(pid: int) -> bool:
    """Whether a process of this host runs; one that nobody has waited for yet doesn't."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


@contextmanager
def silent_output() -> Iterator[None]:
    """What is written to standard output past Python is thrown away: the collectives of CPUs tell it that they are there."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


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
            said.append(f"{name} ({_in_words(where)} against process {first})")
    if said:
        more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
        raise UsageError(
            f"the processes of this run disagree on {', '.join(said[:_NAMED])}{more}: their draws and noise would not be those "
            "of one run; start all of them with the same command, seed, data and versions of packages"
        )


def versions() -> dict[str, str]:
    """Of the packages on which it depends what a process computes, as facts to agree on."""
    return {f"the version of {name}": importlib.metadata.version(name) for name in _PACKAGES}


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


def broadcast(content: bytes) -> bytes:
    """What the first process gives, in every process."""
    if not several():
        return content
    _check_devices()
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    given = np.frombuffer(content, np.uint8) if is_first() else np.zeros(length, np.uint8)
    return multihost_utils.broadcast_one_to_all(given).astype(np.uint8).tobytes() if length else b""


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
