"""What stands beside every figure: the command, the device, the versions and the commit."""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
_PLATFORMS = {"gpu": "cuda", "tpu": "tpu"}


class Device(NamedTuple):
    """Where figures were taken: the folder they go to, and the processor's own name."""

    folder: str
    model: str


def device_name() -> str:
    """The device as a folder's name: its kind, or the number of a CPU's cores."""
    if jax.default_backend() == "cpu":
        return f"cpu-{os.cpu_count()}-cores"
    return _folder(jax.devices()[0].device_kind)


def find_device(kind: str) -> Device | None:
    """A device of a kind, asked for in a process of its own, so that this one doesn't hold it; None if there is none.

    Args:
        kind: "cpu", "gpu" or "tpu".
    """
    if kind == "cpu":
        return Device(device_name(), _processor())
    asked = subprocess.run(
        [sys.executable, "-c", "import jax; print(jax.devices()[0].device_kind)"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"JAX_PLATFORMS": _PLATFORMS[kind], "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
    model = asked.stdout.strip()
    return Device(_folder(model), model) if asked.returncode == 0 else None


def of_another_machine(path: Path, device: Device) -> str | None:
    """The processor that figures in a file were taken on, if it isn't this one."""
    model = json.loads(path.read_text()).get("processor") if path.exists() else None
    return model if model != device.model else None


def write(results: Path, name: str, content: dict[str, Any], device: Device | None = None) -> Path:
    """Write figures with what they were taken on to RESULTS/DEVICE/NAME.json; returns the folder."""
    taken = now(device)
    folder = results / taken["device"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(taken | content, indent=1) + "\n")
    new.replace(path)  # whole, or as it was
    return folder


def write_part_or_whole(results: Path, name: str, content: dict[str, Any], *, is_part: bool) -> Path:
    """As `write`, to NAME.json, or where `name_for` says; returns the file."""
    name = name_for(results, name, is_part=is_part)
    return write(results, name, {"is_part": is_part} | content) / f"{name}.json"


def name_for(results: Path, name: str, *, is_part: bool) -> str:
    """NAME, or for a part of a benchmark NAME-part where figures of the whole lie: those stay.

    Args:
        results: where to write.
        name: of the benchmark's figures.
        is_part: whether this run measures less than the script does by itself.
    """
    path = results / device_name() / f"{name}.json"
    has_whole = path.exists() and not json.loads(path.read_text()).get("is_part", False)
    return f"{name}-part" if is_part and has_whole else name


def now(device: Device | None = None) -> dict[str, Any]:
    """What figures are taken on, as this process runs; without `device`, on JAX's own."""
    script = Path(sys.argv[0]).name
    return {
        "command": ["python", f"benchmarks/{script}", *_said(sys.argv[1:])],
        "device": device.folder if device else device_name(),
        "processor": device.model if device else _processor(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "commit": commit(),
    }


def commit() -> str:
    """Of this repository, as it is checked out, with a + where code was changed since; empty where there is no git to ask."""
    try:
        asked = _git("rev-parse", "HEAD")
        changed = bool(_git("status", "--porcelain", "--", "../jaxdp", "*.py").stdout)
    except OSError:  # there is no git
        return ""
    return asked.stdout.strip() + "+" * changed


def short(commit: str) -> str:
    """As documents show it."""
    return commit[:9] + "+" * commit.endswith("+")


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)


def _said(arguments: list[str]) -> list[str]:
    """Without the folder that was written to, which is this machine's own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--results")
    return parser.parse_known_args(arguments)[1]


def _folder(model: str) -> str:
    return model.replace(" ", "-").lower()


def _processor() -> str:
    """The processor's own name, where the system tells it."""
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
