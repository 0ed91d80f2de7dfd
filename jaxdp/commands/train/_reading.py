"""Whether a data set is read into memory or from disk as it is drawn, and what a run from disk says of it."""

from ... import data as datasets
from ..._errors import UsageError
from ..._processes import gathered
from ...data import Labelled, OnDisk
from ...data._on_disk import on_disk
from ...data._tfds import Prepared, Progress
from ...reading import Source
from ...runs._device import memory_of
from ...runs._devices import Devices
from ...runs._loop import Loop
from ...runs._memory import memory_of_process
from ._options import TrainOptions

_PART_FOR_DATA = 1 / 3  # decoding holds the data twice, and Python, the compiler and the model want the rest
_WAITED_TOO_LONG = 0.1  # of the time of an epoch


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
                f"--reading=disk: --dataset {options.dataset} comes in memory; leave it out, or give --data-dir with a TFDS data set"
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


def waits(loop: Loop) -> str | None:
    """A line where steps have waited for records, and not records for steps."""
    if loop.waited_of_epoch <= _WAITED_TOO_LONG:
        return None
    return (
        f"steps wait for records, {loop.waited_of_epoch:.0%} of the time of this epoch: reading and decoding are what limits them. A "
        "faster disk, or more CPU cores to decode on, would help"
    )


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
    size = f"{sum(prepared.sizes) / 2**30:,.2f} GiB"
    if options.reading == "disk" or room is None:
        return f"{prepared.name}, {size} decoded, is read from disk as it is drawn"
    return (
        f"{prepared.name} is read from disk as it is drawn: decoded it takes {size}, and of the {room / 2**30:,.2f} GiB of memory "
        "that there are a third may go to data (--reading memory tries it all the same)"
    )
