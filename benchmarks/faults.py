"""What becomes of a run that is killed, damaged, or out of room: it ends as if nothing had been, or says what is wrong.

    python benchmarks/faults.py                     # 500 kills and every fault: about 50 minutes on two cores
    python benchmarks/faults.py --kills 20          # that, and every fault
    python benchmarks/faults.py --kills 20 --only-kills
    python benchmarks/faults.py --go-on             # with the kills that an earlier one, broken off, has made

Kills: `jaxdp train` on a table and on images with canaries, `jaxdp pate` and `jaxdp audit`, as processes of their own, get
SIGKILL at random moments: one in five at any moment from the start, the others when the folder is there. Then what a user would
type is done, and what comes of it must be the same to the last bit as what an undisturbed run gives: parameters, metrics,
labels, epsilon and ledger. A process that ended before it was killed doesn't count, and another takes its place.

Faults: of a run broken off by SIGKILL every file in turn is made one bit different, cut short, empty and missing; the data
change; the disk is full; the folder can only be read; two processes have one folder. Each must end the same, or in one line that
says what is wrong. What must never be is another end, or a traceback.

Prints a table, and writes faults.json to RESULTS/DEVICE. An end that isn't the same and a traceback end it with exit code 1.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import faults_on_disk
import record
import tyro
from jobs_to_break import Job, Started, jobs, said
from rich.console import Console
from rich.progress import track
from rich.table import Table

_SHARES = (4, 2, 2, 2)  # of the kills, by job
_ANY_MOMENT = 0.2
_OFTEN = 20  # kills between one writing of the results and the next


@dataclass(frozen=True, kw_only=True)
class Options:
    """Faults and what becomes of them."""

    kills: int = 500
    """how many processes are killed, over all commands"""
    only_kills: bool = False
    """no other faults"""
    go_on: bool = False
    """keep the kills of an earlier run of this seed, and make those that are missing"""
    seed: int = 0
    """of the moments"""
    results: Path = Path(__file__).parent / "results"
    """folder of the figures"""


class Kill(NamedTuple):
    """One SIGKILL: when, in seconds from the process's start, what there was by then, and what came of it."""

    job: str
    seconds: float
    when: str
    outcome: str


class Whole(NamedTuple):
    """An undisturbed run: its end, and after how many seconds its folder was there and it had ended."""

    end: str
    begun: float
    ended: float


def main(options: Options) -> None:
    """Break, go on, compare, and tell."""
    with tempfile.TemporaryDirectory(prefix="jaxdp-faults-") as name:
        room = Path(name)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(room / "compiled"))  # most runs compile nothing
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        all_jobs = jobs(room)
        kills = _earlier(options)
        for kill in _killed(all_jobs, options, room, len(kills)):
            kills.append(kill)
            if len(kills) % _OFTEN == 0:
                _write(options, kills, [])
        found = [] if options.only_kills else faults_on_disk.tried(all_jobs, room)
    _print(kills, found)
    _write(options, kills, found)
    sys.exit(any(each.outcome.startswith(faults_on_disk.WRONG) for each in (*kills, *found)))


def _write(options: Options, kills: list[Kill], found: list[faults_on_disk.Fault]) -> Path:
    rows = {"kills": [kill._asdict() for kill in kills], "faults": [fault._asdict() for fault in found]}
    return record.write(options.results, "faults", {"seed": options.seed, **rows})


def _earlier(options: Options) -> list[Kill]:
    """The kills of an earlier run, where it is to be gone on with."""
    path = options.results / record.device_name() / "faults.json"
    if not options.go_on or not path.exists():
        return []
    earlier = json.loads(path.read_text())
    if earlier["seed"] != options.seed:
        raise SystemExit(f"{path} is of --seed {earlier['seed']}: give that, or leave out --go-on")
    return [Kill(**row) for row in earlier["kills"][: options.kills]]


def _killed(all_jobs: list[Job], options: Options, room: Path, made: int) -> Iterator[Kill]:
    """Those kills that are asked for and not made yet, as many at a time as there are cores."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        wholes = dict(pool.map(lambda job: (job.name, _undisturbed(job, room)), all_jobs))
    turns = [job for job, share in zip(all_jobs, _SHARES, strict=True) for _ in range(share)]
    rng = random.Random(options.seed)
    chosen = [(turns[number % len(turns)], random.Random(rng.random())) for number in range(options.kills)]
    with ThreadPoolExecutor(workers) as pool:
        killed = pool.map(lambda each: _kill(each[0], wholes[each[0].name], each[1], room), chosen[made:])
        yield from track(killed, "kills", total=options.kills - made)


def _undisturbed(job: Job, room: Path) -> Whole:
    """The run that is never killed, twice: the first compiles, and both must end alike."""
    ends, begun, ended = set(), 0.0, 0.0
    for number in range(2):
        folder, start = room / f"{job.name}-whole-{number}", time.perf_counter()
        process = Started(job.new(folder))
        begun = process.until(lambda folder=folder: (folder / job.begun).exists()) - start
        errors = process.wait()
        ended = time.perf_counter() - start
        if process.returncode:
            raise SystemExit(f"{job.name} fails without any fault: {errors}")
        ends.add(job.end(folder))
    if len(ends) > 1:
        raise SystemExit(f"{job.name} ends in two ways without any fault")
    return Whole(ends.pop(), begun, ended)


def _kill(job: Job, whole: Whole, rng: random.Random, room: Path) -> Kill:
    """One run, killed once, gone on with and compared."""
    while True:
        folder, start = Path(tempfile.mkdtemp(dir=room)) / "run", time.perf_counter()
        process = Started(job.new(folder))
        begun = start
        if rng.random() > _ANY_MOMENT and job.name != "audit":  # whose folder is there when it ends
            begun = process.until(lambda folder=folder: (folder / job.begun).exists())
            longest = whole.ended - whole.begun
        else:
            longest = whole.ended
        time.sleep(max(0.0, begun + rng.uniform(0, longest) - time.perf_counter()))
        if process.runs():
            process.kill()
        seconds = time.perf_counter() - start
        process.wait()
        if process.returncode == -signal.SIGKILL:
            break
    when = _when(folder, job)
    code, errors = said(job.go_on(folder))
    if code:
        return Kill(job.name, seconds, when, f"{faults_on_disk.WRONG}: exit code {code}. {errors[-500:]}")
    same = job.end(folder) == whole.end
    return Kill(job.name, seconds, when, faults_on_disk.SAME if same else f"{faults_on_disk.WRONG}: another end")


def _when(folder: Path, job: Job) -> str:
    """How far a killed run had come."""
    there = next((stage for stage in job.stages if any(folder.glob(stage))), None)
    return "before it began" if there is None else f"with {there.replace('[1-9]*[0-9]', 'N')}"


def _print(kills: list[Kill], found: list[faults_on_disk.Fault]) -> None:
    console = Console()
    table = Table("command", "killed", "kills", "outcome")
    for (job, when, outcome), number in sorted(Counter((k.job, k.when, k.outcome) for k in kills).items()):
        table.add_row(job, when, str(number), outcome)
    console.print(table)
    if found:
        table = Table("command", "fault", "times", "outcome")
        for (job, what, outcome), number in sorted(Counter((f.job, f.fault, f.outcome) for f in found).items()):
            table.add_row(job, what, str(number), outcome)
        console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
