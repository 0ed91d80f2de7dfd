"""Several processes in tests: over loopback, each with what it said and how it ended; and what their run must have in common
with that of one."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import jaxdp

TESTS = Path(__file__).parent
HANGS = 900.0  # seconds after which a process won't end any more, on however slow a machine


class Ended(NamedTuple):
    """A process that has ended: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


def free_address() -> str:
    """Of loopback, with a port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def started(commands: list[list[str]], *, devices: int = 1, as_usual: bool = False) -> list[subprocess.Popen[str]]:
    """One Python for each list of arguments, with so many devices each; what it compiles is as tests have it, or as usual."""
    flags = f"{'' if as_usual else os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": path}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env}
    return [subprocess.Popen([sys.executable, *command], **pipes) for command in commands]


def ended(processes: list[subprocess.Popen[str]]) -> list[Ended]:
    """What became of them."""
    until = time.monotonic() + HANGS
    try:
        said = [process.communicate(timeout=max(0.1, until - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            with process:  # which closes its pipes and waits for it
                process.kill()
    return [Ended(process.returncode, *each) for process, each in zip(processes, said, strict=True)]


def together(commands: list[list[str]], *, devices: int = 1, as_usual: bool = False) -> list[Ended]:
    """Start them all and wait for their ends."""
    return ended(started(commands, devices=devices, as_usual=as_usual))


def same_run(folder: Path, other: Path) -> None:
    """The same draws, noise and cost, which are told to the bit, and parameters to what adding up in another order makes."""
    assert (folder / "statement.json").read_text() == (other / "statement.json").read_text()
    one, two = jaxdp.load_run(folder), jaxdp.load_run(other)
    assert one.summary is not None
    assert two.summary is not None
    assert one.summary["epsilon"] == two.summary["epsilon"]
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    for theirs, ours in zip(one.metrics, two.metrics, strict=True):
        assert theirs["epsilon"] == ours["epsilon"]
        np.testing.assert_allclose(theirs["train_loss"], ours["train_loss"], rtol=1e-4)


def killed_under_way(
    commands: list[list[str]], folder: Path, victim: int = 0, *, devices: int = 1
) -> list[subprocess.Popen[str]]:
    """Start these processes, and kill one of them once the run has made an epoch."""
    processes, metrics = started(commands, devices=devices), folder / "private" / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_text():
        assert processes[victim].poll() is None, processes[victim].communicate()
        time.sleep(0.01)
    processes[victim].kill()
    return processes
