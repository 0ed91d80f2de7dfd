"""A data set ten times the memory that the process may use: trained on from disk, and in memory where there is no limit.

    python benchmarks/reading.py                    # about 12 GiB on disk and, for the arrays, of memory; gone at the end
    python benchmarks/reading.py --models mlp --rounds 5
    python benchmarks/reading.py --quick            # a small set and no limit: whether it runs at all

Random images, memory-mapped. The limit is set on the process that reads from disk (`RLIMIT_DATA`, of which Python, JAX and its
compiler take most), and the files are dropped from the system's cache before it starts. Each measurement is a process of its own,
and both kinds take turns; steps a second are those after the first few, dispatched ahead as `jaxdp train` does. Then a further
process is killed by SIGKILL half-way, and another one goes on from its newest checkpoint. The parameters of all must be the same
to the bit: where they aren't, it fails.

Prints a table, and writes it with the hardware, the versions and the command to benchmarks/results/DEVICE/.
"""

import hashlib
import json
import math
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
import record
import tyro
from rich.console import Console
from rich.table import Table

import jaxdp
from jaxdp.models import classifier
from jaxdp.reading import Source
from jaxdp.runs import Checkpoint, CheckpointFolder

Model = Literal["mlp", "cnn"]

TIMES = 10  # the data are so many times the limit
_WARM = 4  # steps before time is taken
_AHEAD = 8  # as in the loop of `jaxdp train`
_CHUNK = 2**26
_STACK = 2**21


@dataclass(frozen=True, kw_only=True)
class Options:
    """Training from disk against training in memory."""

    models: tuple[Model, ...] = ("mlp", "cnn")
    """the tutorials' MLP and CNN"""
    limit: int = 1200
    """MiB of memory that the process which reads from disk may use; the data take ten times that"""
    side: int = 64
    """pixels of an image's side; each has three numbers"""
    batch_size: int = 256
    """expected examples a step"""
    steps: int = 120
    """steps of a measurement"""
    every: int = 10
    """steps between checkpoints, where the process is to be killed"""
    rounds: int = 3
    """measurements of each kind, in turns"""
    folder: Path | None = None
    """where the data set is made; the system's folder for temporary files by default"""
    quick: bool = False
    """one model, a small data set and few steps, without a limit"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one process does."""

    model: Model
    images: str
    labels: str
    examples: int
    side: int
    batch_size: int
    steps: int
    from_disk: bool
    params: str
    checkpoints: str | None = None
    every: int = 0


class _Timed(NamedTuple):
    """Steps, the seconds that they took, and how many of these they waited for records."""

    steps: int
    seconds: float
    waited: float


@dataclass
class Row:
    """What was measured with one model."""

    model: str
    parameters: int
    in_memory: list[dict[str, float]] = field(default_factory=list)
    from_disk: list[dict[str, float]] = field(default_factory=list)
    killed_after: int = 0
    resumed_from: int = 0

    def median(self, which: str, name: str) -> float:
        """Over the measurements of a kind."""
        return statistics.median(each[name] for each in getattr(self, which))

    @property
    def ratio(self) -> float:
        """Of both speeds, each in turn with the other."""
        pairs = zip(self.from_disk, self.in_memory, strict=True)
        return statistics.median(disk["steps_per_second"] / memory["steps_per_second"] for disk, memory in pairs)


def main(options: Options) -> None:
    """Make the data, measure, compare, print, write."""
    if options.quick:
        options = replace(options, models=("mlp",), limit=0, side=16, steps=40, rounds=1, every=4)
    one = options.side**2 * 3
    examples = 4000 if options.quick else math.ceil(TIMES * options.limit * 2**20 / (one + 4))
    parent = Path(tempfile.gettempdir()) if options.folder is None else options.folder
    needed = examples * (one + 4)
    if (free := shutil.disk_usage(parent).free) < 1.1 * needed:
        raise SystemExit(f"{parent} has {free / 2**30:.1f} GiB of room, and {1.1 * needed / 2**30:.1f} are needed")
    with tempfile.TemporaryDirectory(dir=parent, prefix="jaxdp-reading-") as folder:
        images, labels = _made(Path(folder), examples, options.side)
        rows = [_measured(options, model, Path(folder), images, labels, examples) for model in options.models]
    _report(options, rows, needed)


def _made(folder: Path, examples: int, side: int) -> tuple[Path, Path]:
    """Files of random images and labels."""
    rng, shape = np.random.default_rng(0), (examples, side, side, 3)
    images, labels = folder / "images.npy", folder / "labels.npy"
    np.save(labels, rng.integers(0, 10, examples).astype(np.int32))
    with images.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        left = math.prod(shape)
        while left:
            size = min(left, _CHUNK)
            file.write(rng.bytes(size))
            left -= size
        os.fsync(file.fileno())
    return images, labels


def _measured(options: Options, model: Model, folder: Path, images: Path, labels: Path, examples: int) -> Row:
    given = {"images": str(images), "labels": str(labels), "examples": examples, "side": options.side, "model": model}
    part = Part(**given, batch_size=options.batch_size, steps=options.steps, from_disk=False, params="")
    row = Row(model, 0)
    for number in range(options.rounds):
        for from_disk, found in ((False, row.in_memory), (True, row.from_disk)):
            params = str(folder / f"{model}-{number}-{from_disk}.npy")
            found.append(_run(options, replace(part, from_disk=from_disk, params=params)))
    killed = replace(
        part,
        from_disk=True,
        params=str(folder / f"{model}-resumed.npy"),
        checkpoints=str(folder / f"{model}-checkpoints"),
        every=options.every,
    )
    row.killed_after = _killed(options, killed)
    row.resumed_from = int(_run(options, killed)["first"])
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob(f"{model}-*.npy"))
    }
    if len(set(digests.values())) > 1:
        raise SystemExit(f"the parameters differ: {json.dumps(digests, indent=1)}")
    if not 0 < row.resumed_from <= row.killed_after < options.steps:
        raise SystemExit(f"killed after step {row.killed_after}, resumed from {row.resumed_from}: not half-way")
    row.parameters = np.load(killed.params).size
    return row


def _process(options: Options, part: Part) -> subprocess.Popen[str]:
    """A process that does one part, under the limit if it reads from disk."""
    if part.from_disk:
        _drop_from_cache(Path(part.images))
    command = [sys.executable, __file__, "part", json.dumps(asdict(part))]
    limit = _limited(options.limit * 2**20) if part.from_disk and options.limit else None
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit)


def _limited(size: int) -> Callable[[], None]:
    """What sets the limit in a process before it begins. Stacks count as data, of all threads and in full: smaller ones do."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (_STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))

    return limit


def _run(options: Options, part: Part) -> dict[str, float]:
    process = _process(options, part)
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a process ended with {process.returncode}: {part}")
    return json.loads(said.splitlines()[-1])


def _killed(options: Options, part: Part) -> int:
    """Begin a part, kill it half-way, and return after which step."""
    process = _process(options, part)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step ") and int(line.split()[1]) >= part.steps // 2:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return int(line.split()[1])
    raise SystemExit(f"the process ended before it was killed: {part}")


def _drop_from_cache(path: Path) -> None:
    """Have the system forget what it keeps of a file in memory, where it can be asked to."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _part(part: Part) -> None:
    """What one process does: train, and say how fast."""
    model = classifier(
        part.model,
        jaxdp.data.Classes(10),
        input_shape=(part.side, part.side, 3),
        input_dtype=np.uint8,
        activation="tanh",
    )
    run = jaxdp.DPSGD(
        num_examples=part.examples,
        expected_batch_size=part.batch_size,
        steps=part.steps,
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
    step = run.make_step(model.loss, optax.sgd(0.1, momentum=0.9), has_aux=True)
    state = step.init(model.init(jax.random.key(0)), jax.random.key(1))  # known keys, for noise that hides nothing
    data = _source(part) if part.from_disk else _arrays(part)
    with _watched() as peak:
        first, state, timed = _trained(part, step, state, data)
    params = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])
    np.save(part.params, params)
    said = {
        "first": first,
        "steps_per_second": timed.steps / timed.seconds if timed else math.nan,
        "share_waited": timed.waited / timed.seconds if timed else math.nan,
        "anonymous_mib": peak[0] / 2**20,
    }
    print(json.dumps(said))


def _trained(part: Part, step: Any, state: Any, data: Any) -> tuple[int, Any, _Timed | None]:
    """(the first step made here, the last state, the time that steps took if it was taken)."""
    if part.checkpoints is None:
        state = _advanced(step, state, data, _WARM)
        began, waited = time.perf_counter(), step.waited
        state = _advanced(step, state, data, part.steps)
        timed = _Timed(part.steps - _WARM, time.perf_counter() - began, step.waited - waited)
        return 0, state, timed
    with CheckpointFolder(Path(part.checkpoints), "reading.py") as checkpoints:
        found, _ = checkpoints.load(Checkpoint(state, {}))
        state = state if found is None else found.state
        first = state.step
        while state.step < part.steps:
            state = _advanced(step, state, data, min(part.steps, state.step + part.every))
            checkpoints.save(Checkpoint(state, {}))
            print(f"step {state.step}", flush=True)
    return first, state, None


def _advanced(step: Any, state: Any, data: Any, end: int) -> Any:
    """The state at a step, made without waiting for each one's end."""
    under_way: deque[Any] = deque()
    while state.step < end:
        state, metrics = step(state, data)
        under_way.append(metrics)
        if len(under_way) > _AHEAD:
            jax.block_until_ready(under_way.popleft())
    return jax.block_until_ready(state)


def _source(part: Part) -> Source:
    return Source((np.load(part.images, mmap_mode="r"), np.load(part.labels, mmap_mode="r")))


def _arrays(part: Part) -> Any:
    """The data in memory, where JAX takes them without a copy."""
    stored = np.load(part.images, mmap_mode="r")
    room = np.empty(stored.nbytes + mmap.PAGESIZE, np.uint8)
    start = -room.ctypes.data % mmap.PAGESIZE
    images = room[start : start + stored.nbytes].reshape(stored.shape)
    rows = max(1, _CHUNK // math.prod(stored.shape[1:]))
    for first in range(0, len(images), rows):
        images[first : first + rows] = stored[first : first + rows]
    return jax.block_until_ready(jax.device_put((images, np.load(part.labels))))


@contextmanager
def _watched() -> Iterator[list[int]]:
    """The most memory that was not a file's while the block ran, looked up every so often; 0 where nobody tells."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peak[0] = max(peak[0], _anonymous())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _anonymous() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def _report(options: Options, rows: list[Row], size: int) -> None:
    under = f"a process of {options.limit:,} MiB" if options.limit else "no limit"
    table = Table(title=f"{size / 2**30:.1f} GiB of images on disk, {under}")
    headers = ("model", "parameters", "in memory, steps/s", "from disk, steps/s", "ratio", "waited")
    for header in (*headers, "peak, MiB (in memory)", "killed after, resumed from"):
        table.add_column(header, justify="right")
    content = []
    for row in rows:
        speeds = [row.median(which, "steps_per_second") for which in ("in_memory", "from_disk")]
        peaks = [max(each["anonymous_mib"] for each in found) for found in (row.from_disk, row.in_memory)]
        table.add_row(
            row.model,
            f"{row.parameters:,}",
            *(f"{speed:.2f}" for speed in speeds),
            f"{row.ratio:.2f}",
            f"{row.median('from_disk', 'share_waited'):.0%}",
            f"{peaks[0]:,.0f} ({peaks[1]:,.0f})",
            f"{row.killed_after}, {row.resumed_from}",
        )
        content.append(asdict(row) | {"ratio": row.ratio})
    Console().print(table)
    about = {"bytes": size, "limit_mib": options.limit, "batch_size": options.batch_size, "steps": options.steps}
    name = "reading-quick" if options.quick else "reading"
    record.write(options.results, name, about | {"rows": content})


if __name__ == "__main__":
    if sys.argv[1:2] == ["part"]:
        _part(Part(**json.loads(sys.argv[2])))
    else:
        main(tyro.cli(Options, description=__doc__))
