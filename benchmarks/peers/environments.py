"""An environment of its own for each peer, made from its pinned list beside this file.

    python benchmarks/peers/environments.py            # makes all that can be made, and says why the others can't
    python benchmarks/peers/environments.py opacus

A list's first line names the newest Python that its packages work on. An environment is made once, under the user's cache, and
again when its list changes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

LISTS = Path(__file__).parent
PEERS = ("tf_privacy", "opacus", "jax_privacy", "optax")
_PYTHONS = ("3.11", "3.12", "3.13")


class UnavailableError(Exception):
    """Why a peer can't be had here."""


def python_of(peer: str) -> Path:
    """The Python of a peer's environment, which is made if it isn't there.

    Args:
        peer: one of `PEERS`.

    Raises:
        UnavailableError: for an unknown peer, where there is no Python for it, or where its packages can't be installed.
    """
    if peer not in PEERS:
        raise UnavailableError(f"there is no peer named {peer!r}: choose of {', '.join(PEERS)}")
    pinned = (LISTS / f"{peer}.txt").read_text()
    newest = pinned.splitlines()[0].removeprefix("# Python up to ").strip()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jaxdp-privacy" / "peers"
    room = cache / f"{peer}-{hashlib.sha256(pinned.encode()).hexdigest()[:12]}"
    python, complete = room / "bin" / "python", room / "complete"
    if complete.exists():
        return python
    interpreter = _interpreter(newest)
    shutil.rmtree(room, ignore_errors=True)
    commands = (
        [interpreter, "-m", "venv", str(room)],
        [str(python), "-m", "pip", "install", "--quiet", "-r", str(LISTS / f"{peer}.txt")],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[
                -1:
            ]
            raise UnavailableError(f"{peer} can't be installed: {' '.join(said)}")
    complete.touch()
    return python


def _interpreter(newest: str) -> str:
    """A Python of a version up to `newest`, the newest such there is, by name or as pyenv keeps them."""
    known = [version for version in _PYTHONS if _number(version) <= _number(newest)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in reversed(known):
        kept = sorted(versions.glob(f"{version}.*/bin/python"))
        for candidate in (shutil.which(f"python{version}"), *map(str, kept)):
            if (
                candidate
                and subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False).returncode == 0
            ):
                return candidate
    raise UnavailableError(f"there is no Python of version {' or '.join(known)} on this machine")


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    for name in sys.argv[1:] or PEERS:
        try:
            print(f"{name}: {python_of(name)}")
        except UnavailableError as error:
            print(f"{name}: not available, {error}")
