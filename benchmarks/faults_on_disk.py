"""Faults of files and disks: damage, other data, no room, no right to write, two processes in one folder."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from jobs_to_break import Job, Started, jobs, said
from rich.progress import track

WRONG = "WRONG"
_LABELLED = "labels.csv"  # of PATE: what is released
SAME, REFUSED = "the same end", "refused in one line"
_OWN_PLACE = re.compile(re.escape(tempfile.gettempdir()) + r"/[^/\s]+/")  # of no interest in what was said
_ROOM = 72 * 2**20  # a disk on which a run begins


class Fault(NamedTuple):
    """What was done to which file of which command, and what came of it; `line` is what was said."""

    job: str
    fault: str
    file: str
    outcome: str
    line: str = ""


def tried(all_jobs: list[Job], room: Path) -> list[Fault]:
    """Every fault in turn, as many at a time as there are cores."""
    train, canaries, pate, _ = all_jobs
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        tasks = [task for job in (train, canaries, pate) for task in _damages(job, room)]
        tasks += _damages(pate, room, _LABELLED)
        tasks += [partial(_two_at_once, job, room) for job in (train, pate)]
        found = list(track(pool.map(lambda task: task(), tasks), "damage", total=len(tasks)))
    found += [_other_data(train, room), *(_disks() if _can_mount() else [])]
    return found


def _damages(job: Job, room: Path, late: str | None = None) -> Iterator[Callable[[], Fault]]:
    """Every file of a run that was broken off, of its newest checkpoint alone, in every way; `late`, when that file was there."""
    broken, whole = room / f"{job.name}-{late or 'broken'}", room / f"{job.name}-whole-1"
    _break_off(job, broken, late)
    names = sorted(path.relative_to(broken) for path in broken.rglob("*") if path.is_file() and path.name != "lock")
    steps = [
        int(name.parts[2]) for name in names if name.parent.parts[1:2] == ("checkpoints",) and name.parts[2].isdigit()
    ]
    for name in names:
        if not steps or name.parts[1:2] != ("checkpoints",) or name.parts[2] == str(max(steps)):
            for what in _WAYS:
                yield partial(_damaged, job, broken, whole, name, what)


def _break_off(job: Job, folder: Path, late: str | None = None) -> None:
    """Killed when there are two checkpoints beside the first, or the votes of teachers, or the file `late`."""
    process = Started(job.new(folder))
    checkpoints = lambda: list((folder / "private" / "checkpoints").glob("[1-9]*[0-9]"))
    enough = lambda: len(checkpoints()) > 1 or (folder / "private" / "votes.npy").exists()
    process.until(enough if late is None else (folder / late).exists)
    process.kill()
    process.wait()
    if process.returncode != -signal.SIGKILL:
        raise SystemExit(f"{job.name} ended before it could be broken off")


def _damaged(job: Job, broken: Path, whole: Path, name: Path, what: str) -> Fault:
    folder = Path(f"{broken}-{abs(hash((name, what)))}")
    shutil.copytree(broken, folder, symlinks=True)
    _WAYS[what](folder / name)
    # A folder without config.json holds no run: that is said by --resume, which a user would type.
    found = _gone_on(job, job.again(folder), folder, job.end(whole))
    shutil.rmtree(folder)
    return Fault(job.name, what, _kind(name), *found)


def _gone_on(job: Job, command: list[str], folder: Path, end: str) -> tuple[str, str]:
    """What comes of a command: its outcome and the line that it said."""
    code, errors = said(command)
    if code == 0:
        return (SAME, "") if job.end(folder) == end else (f"{WRONG}: another end", "")
    return _judged(code, errors)


def _judged(code: int, errors: str) -> tuple[str, str]:
    """Whether a command that didn't do what it was asked said so in one line: the outcome, and the line."""
    lines = _OWN_PLACE.sub("", errors).strip().splitlines()
    if code == 2 and len(lines) == 1 and lines[0].startswith("jaxdp: error: "):
        return REFUSED, lines[0]
    return f"{WRONG}: exit code {code}, {errors[-300:]}", ""


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _kind(name: Path) -> str:
    """A file's place, without the numbers in it."""
    return "/".join("N" if part.isdigit() else part for part in name.parts)


_WAYS: dict[str, Callable[[Path], object]] = {
    "one bit flipped": _flipped,
    "cut to half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
}


def _other_data(job: Job, room: Path) -> Fault:
    """One digit of the data is another when the run goes on."""
    folder = room / "other-data"
    _break_off(job, folder)
    features = room / "tables" / "train_features.csv"
    before = features.read_bytes()
    at = max(before.rfind(digit) for digit in (b"1", b"2", b"3"))
    features.write_bytes(before[:at] + b"4" + before[at + 1 :])
    outcome, line = _gone_on(job, job.again(folder), folder, "")
    features.write_bytes(before)
    return Fault(job.name, "one digit of the data changed", "train_features.csv", outcome, line)


def _two_at_once(job: Job, room: Path) -> Fault:
    """A second process in the folder of one that runs."""
    folder = room / f"{job.name}-two"
    first = Started(job.new(folder))
    first.until(lambda: (folder / job.begun).exists())
    os.killpg(first.pid, signal.SIGSTOP)  # so that the other comes before it ends
    outcome, line = _gone_on(job, job.again(folder), folder, "")
    os.killpg(first.pid, signal.SIGCONT)
    first.wait()
    if first.returncode or job.end(folder) != job.end(room / f"{job.name}-whole-1"):
        outcome = f"{WRONG}: the first of two didn't end as it would have alone"
    return Fault(job.name, "two processes in one folder", "", outcome, line)


def _can_mount() -> bool:
    """Whether this machine lets a process have a small disk of its own."""
    try:
        return not subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode
    except OSError:
        return False


def _disks() -> list[Fault]:
    """What happens on a disk that fills up, and on one that can't be written: in a process that has such disks."""
    script = Path(__file__)
    asked = subprocess.run(
        ["unshare", "-rm", sys.executable, str(script)], check=True, text=True, stdout=subprocess.PIPE
    )
    return [Fault(*json.loads(line)) for line in asked.stdout.splitlines()]


def _on_small_disks(room: Path) -> Iterator[Fault]:
    """In a mount namespace of this process's own: what it mounts is gone with it."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "none", room], check=True)
    job = jobs(room)[0]
    whole = room / "whole"
    said(job.new(whole))
    end = job.end(whole)
    disk = room / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_ROOM}", "none", disk], check=True)
    folder = disk / "run"
    process = Started(job.new(folder))
    process.until(lambda: (folder / job.begun).exists())
    filler = disk / "filler"
    _fill(filler)
    errors = process.wait()
    yield Fault(job.name, "the disk is full", "", *_judged(process.returncode, errors))
    yield Fault(job.name, "the disk is still full", "", *_gone_on(job, job.again(folder), folder, end))
    filler.unlink()
    yield Fault(job.name, "the disk has room again", "", *_gone_on(job, job.again(folder), folder, end))
    _break_off(job, disk / "broken")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for name, command in (("begun on", job.new(disk / "new")), ("gone on with on", job.again(disk / "broken"))):
        yield Fault(job.name, f"{name} a disk that can only be read", "", *_gone_on(job, command, disk, end))


def _fill(path: Path) -> None:
    """Take all room there is."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**16))
        except OSError:
            return


if __name__ == "__main__":
    for fault in _on_small_disks(Path(tempfile.mkdtemp())):
        print(json.dumps(fault), flush=True)
