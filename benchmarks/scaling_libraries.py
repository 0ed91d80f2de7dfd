"""Private steps of jaxdp, jax-privacy and Opacus on several devices of a host, or in as many processes: a part of scaling.py."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from forced_devices import environment_with
from peers.environments import UnavailableError, python_of

Row = dict[str, Any]

LIBRARIES = ("jaxdp", "jax-privacy", "opacus")
MODEL, BATCH = "mlp", 256
COLUMNS = {
    "devices": ("devices", "d"),
    "library": ("library", ""),
    "ms": ("median_milliseconds", ".1f"),
    "over jaxdp": ("ratio", ".2f"),
    "speed, one device = 1": ("speedup", ".2f"),
}
_SCRIPT = Path(__file__).parent / "peers" / "on_devices.py"
_LIMIT_SECONDS = 600


def by_devices(devices: tuple[int, ...], steps: int) -> list[Row]:
    """A row for each library on each number of devices; libraries that aren't to be had, or fail, are told of and left out.

    Args:
        devices: numbers of them.
        steps: how many are timed.
    """
    rows = [row for count in devices for library in LIBRARIES if (row := _measured(library, count, steps))]
    for row in rows:
        beside = [one for one in rows if one["library"] == "jaxdp" and one["devices"] == row["devices"]]
        alone = [one for one in rows if one["library"] == row["library"] and one["devices"] == min(devices)]
        row["ratio"] = _over(row, beside)
        row["speedup"] = 1 / _over(row, alone)
    return rows


def _measured(library: str, devices: int, steps: int) -> Row | None:
    try:
        python = sys.executable if library == "jaxdp" else str(python_of(library))
    except UnavailableError as error:
        print(f"{library}: {error}", file=sys.stderr)
        return None
    command = [python, str(_SCRIPT), library, str(devices), MODEL, str(BATCH), str(steps)]
    environment = environment_with(devices, forced=True)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        print(f"{library} on {devices}: not within {_LIMIT_SECONDS} s", file=sys.stderr)
        return None
    if done.returncode:
        print(f"{library} on {devices}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
        return None
    told = json.loads(done.stdout.splitlines()[-1])
    milliseconds = [1e3 * seconds for seconds in told["seconds"]]
    row = {"devices": devices, "library": library, "batch_size": BATCH, "milliseconds": milliseconds}
    row["versions"] = told["versions"]
    return row | {"median_milliseconds": statistics.median(milliseconds)}


def _over(row: Row, others: list[Row]) -> float:
    """A row's time over another's, if there is one."""
    return row["median_milliseconds"] / others[0]["median_milliseconds"] if others else float("nan")


def draw(axis: Any, rows: list[Row]) -> None:
    """Times by devices."""
    for library in dict.fromkeys(row["library"] for row in rows):
        own = [row for row in rows if row["library"] == library]
        axis.plot([row["devices"] for row in own], [row["median_milliseconds"] for row in own], label=library)
    counts = sorted({row["devices"] for row in rows})
    axis.set(xscale="log", yscale="log", ylabel=f"time of a step (ms), B = {BATCH}")
    axis.set(xlabel=f"devices or processes on one host of {os.cpu_count()} cores")
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.minorticks_off()
