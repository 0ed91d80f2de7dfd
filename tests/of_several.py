"""Several processes in tests: over loopback, as many as asked for, each with what it said and how it ended."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent


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


def started(commands: list[list[str]], *, devices: int = 1) -> list[subprocess.Popen[str]]:
    """One Python for each list of arguments, with so many devices each."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": path}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env}
    return [subprocess.Popen([sys.executable, *command], **pipes) for command in commands]


def ended(processes: list[subprocess.Popen[str]], *, within: float = 240) -> list[Ended]:
    """What became of them, all of which end within so many seconds."""
    until = time.monotonic() + within
    try:
        said = [process.communicate(timeout=max(0.1, until - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(process.returncode, *each) for process, each in zip(processes, said, strict=True)]


def together(commands: list[list[str]], *, devices: int = 1) -> list[Ended]:
    """Start them all and wait for their ends."""
    return ended(started(commands, devices=devices))
