"""How the processes of one run find each other, part, and find out that one of them is gone.

JAX ends the process where others never come, and where others are gone while this one isn't talking to them. For the first this
file has a clock of its own, which ends the process earlier and says why; of the second a small process of its own tells, in
`explained`.
"""

import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import jax

from ._errors import UsageError
from ._interrupts import Interrupted, how_to_go_on, listen_again
from ._processes import gathered, in_words, several

_SECONDS_TO_MEET = 60
_SECONDS_TO_MISS = 40  # without a sign of life of another process, until JAX ends this one
_SECONDS_TO_PART = 10


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
    return f"{in_words(found)} {'has' if len(found) == 1 else 'have'} died" + ("" if here else " or can't be reached")


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


@contextmanager
def explained() -> Iterator[None]:
    """Where this process is one of several and is ended within the block without a word of Python's, as JAX does, a small one
    beside it says how to go on."""
    if not several():
        yield
        return
    line = (
        f"jaxdp: error: this process was killed, or ended by JAX since another one of the run is gone{how_to_go_on()}"
    )
    with _beside(line):
        yield


@contextmanager
def _beside(line: str) -> Iterator[None]:
    """A process that says that line where this one ends within the block."""
    code = "import sys; well = sys.stdin.read(); sys.stderr.write('' if well else sys.argv[1] + '\\n')"
    command = [sys.executable, "-I", "-S", "-c", code, line]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True) as beside:
        try:
            yield
        finally:
            beside.communicate("well")
