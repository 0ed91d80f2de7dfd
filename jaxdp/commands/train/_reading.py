"""Whether a data set is read into memory or from disk as it is drawn, what a run has of it, and what it says of that."""

from typing import Any

import jax
import numpy as np

from ... import data as datasets
from ..._errors import UsageError
from ..._processes import gathered, is_first
from ...data import Labelled, OnDisk
from ...data._on_disk import columns, on_disk
from ...data._tfds import Prepared, Progress, no_progress
from ...models import sees_pixels
from ...reading import Source
from ...runs._device import memory_of
from ...runs._devices import Devices
from ...runs._loop import Loop
from ...runs._memory import memory_of_process
from ...runs._report import rows_shown
from ._options import TrainOptions
from ._problem import Problem

_PART_FOR_DATA = 1 / 3  # decoding holds the data twice, and Python, the compiler and the model want the rest
_WAITED_TOO_LONG = 0.1  # of the time of an epoch
_WORTH_TELLING = 1.0  # seconds


def read(options: TrainOptions, devices: Devices, progress: Progress) -> tuple[Labelled | OnDisk, str | None]:
    """The data set that the options name, without the examples held back from training; and a line where it stays on disk.

    Args:
        options: with its name, and how it is to be read.
        devices: which hold what is read into memory.
        progress: as `jaxdp.data.load` takes it.

    Raises:
        UsageError: for a data set that can't be read, or is in memory alone where it is to be read from disk.
    """
    prepared = datasets.prepared(options.dataset, options.data_dir)
    if prepared is None:
        if options.reading == "disk":
            raise UsageError(
                f"--reading=disk: --dataset {options.dataset} comes in memory: leave it out, or give a TFDS data set by "
                "--dataset and --data-dir"
            )
        data = datasets.load_labelled(options.dataset, options.data_dir, progress=progress)
        return datasets.hold_back(data, options.holdout), None
    room = _room(devices)
    too_large = options.reading == "auto" and room is not None and sum(prepared.sizes) > room * _PART_FOR_DATA
    own = b"disk" if too_large or options.reading == "disk" else b""
    if not any(gathered(own)):  # several processes read alike, as the one must that has least
        return datasets.hold_back(prepared.decoded(progress).labelled(), options.holdout), None
    data = datasets.hold_back(on_disk(prepared), options.holdout)
    if room is None or _test_size(prepared, data) <= room * _PART_FOR_DATA:
        data = data.with_test_in_memory()
    return data, _in_words(options, prepared, room)


def steps_take(problem: Problem, devices: Devices) -> Any:
    """Inputs as the model has them, with labels, and weights if there are any, on every device; or the records where they lie."""
    if isinstance(problem.train, Source) and not problem.model.prepares:
        return problem.train
    inputs, labels = columns(problem.train)
    weights = () if problem.weights is None else (problem.weights,)
    return devices.everywhere((_prepared(problem, inputs), labels[:], *weights))


def evaluation_takes(problem: Problem) -> tuple[Any, np.ndarray]:
    """Inputs to evaluate on as the model has them, or what reads them in part, with labels."""
    inputs, labels = columns(problem.test)
    return _prepared(problem, inputs), labels[:]


def waits(loop: Loop) -> str | None:
    """A line where steps have waited for records, and not records for steps."""
    waited, seconds = loop.last_epoch
    if waited <= _WAITED_TOO_LONG * seconds or waited <= _WORTH_TELLING:
        return None
    return (
        f"steps wait for records, {waited / seconds:.0%} of the time of this epoch: reading and decoding are what limits "
        "them; a faster disk, or more CPU cores to decode on, would help"
    )


def _prepared(problem: Problem, inputs: Any) -> Any:
    """Inputs as the model takes them."""
    progress = rows_shown if is_first() else no_progress
    return jax.block_until_ready(problem.model.prepare(inputs, progress=progress))


def _room(devices: Devices) -> float | None:
    """Bytes that may be used by what is kept of the data, on the host and on each device; None where nobody tells."""
    of_device = memory_of(devices.own)
    if of_device is not None and devices.own.platform == "cpu":
        of_device /= devices.copies
    known = [each for each in (memory_of_process(), of_device) if each is not None]
    return min(known, default=None)


def _test_size(prepared: Prepared, data: OnDisk) -> int:
    return prepared.size_of_one * len(data.test) if isinstance(data.test, Source) else 0


def _in_words(options: TrainOptions, prepared: Prepared, room: float | None) -> str:
    how = (
        "as it is drawn" if sees_pixels(options.architecture) else f"once, for what {options.architecture} keeps of it"
    )
    said = f"{prepared.name} is read from disk {how}"
    if options.reading == "disk" or room is None:
        return said
    return (
        f"{said}: decoded it takes {sum(prepared.sizes) / 2**20:,.0f} MiB, more than a third of the {room / 2**20:,.0f} MiB of "
        "memory that there are; --reading memory tries it nevertheless"
    )
