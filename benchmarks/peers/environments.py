"""An environment of its own for each peer, made from its pinned list beside this file.

    python benchmarks/peers/environments.py            # makes all that can be made, and says why the others can't
    python benchmarks/peers/environments.py opacus --device gpu
    python benchmarks/peers/environments.py --device gpu --resolve     # only asks whether the packages go together; no GPU needed

A list's first line names the newest Python that its packages work on; a line that ends in "# on gpu" is for that device alone. An
environment is made once, under the user's cache, and again when its list changes.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

LISTS = Path(__file__).parent
PEERS = ("tf-privacy", "opacus", "jax-privacy", "optax")
COMPILERS = "compilers"  # jaxdp's own, with XLA's compilers for devices that aren't here (accelerators.py)
ATTACKS = "tf-privacy-attacks"  # membership inference alone (shadows.py)
_PYTHONS = ("3.11", "3.12", "3.13")


class UnavailableError(Exception):
    """Why a peer can't be had here."""


def python_of(peer: str, device: str = "cpu") -> Path:
    """The Python of a peer's environment, which is made if it isn't there.

    Args:
        peer: one of `PEERS`, `COMPILERS` or `ATTACKS`.
        device: "cpu", "gpu" or "tpu".

    Raises:
        UnavailableError: for an unknown peer, where there is no Python for it, or where its packages can't be installed.
    """
    first, needed = _listed(peer, device)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jaxdp-privacy" / "peers"
    room = cache / f"{peer}-{hashlib.sha256(repr([first, needed]).encode()).hexdigest()[:12]}"
    python, complete = room / "bin" / "python", room / "complete"
    if complete.exists() and python.exists():  # it is a link to a Python that may have gone
        return python
    interpreter = _interpreter(first)
    shutil.rmtree(room, ignore_errors=True)
    for command in (
        [interpreter, "-m", "venv", str(room)],
        [str(python), "-m", "pip", "install", "--quiet", *needed],
    ):
        _run(peer, command)
    complete.touch()
    return python


def python_here(peer: str) -> Path:
    """This Python, for a peer that is installed in it, in whatever version: where there is no package index.

    Args:
        peer: one of `PEERS`.

    Raises:
        UnavailableError: for one that isn't.
    """
    package = peer.replace("-", "_").replace("tf_", "tensorflow_")
    if importlib.util.find_spec(package) is None:
        raise UnavailableError(f"{peer} isn't installed beside this Python, {sys.executable}")
    return Path(sys.executable)


def resolved(peer: str, device: str) -> list[str]:
    """The packages that a peer's environment would have, "name version" each; nothing is installed.

    Args:
        peer: one of `PEERS`, `COMPILERS` or `ATTACKS`.
        device: "cpu", "gpu" or "tpu".

    Raises:
        UnavailableError: where there are no versions that go together.
    """
    first, needed = _listed(peer, device)
    how = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    report = json.loads(_run(peer, [_interpreter(first), "-m", "pip", *how, *needed]))
    return sorted(f"{each['metadata']['name']} {each['metadata']['version']}" for each in report["install"])


def _listed(peer: str, device: str) -> tuple[str, list[str]]:
    """The newest Python of a peer's list, and what it asks for on a device."""
    if peer not in (*PEERS, COMPILERS, ATTACKS):
        raise UnavailableError(f"there is no peer named {peer!r}: choose of {', '.join(PEERS)}")
    first, *lines = (LISTS / f"{peer}.txt").read_text().splitlines()
    needed = [line.split("#")[0].strip() for line in lines if "# on " not in line or line.endswith(f"# on {device}")]
    return first.removeprefix("# Python up to ").strip(), needed


def _run(peer: str, command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.splitlines()
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
        raise UnavailableError(f"{peer} can't be installed: {' '.join(errors)}")
    return done.stdout


def _interpreter(newest: str) -> str:
    """A Python of a version up to `newest`, the newest such there is, by name or as pyenv keeps them."""
    known = [version for version in _PYTHONS if _number(version) <= _number(newest)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in reversed(known):
        kept = sorted(versions.glob(f"{version}.*/bin/python"))
        for candidate in filter(None, (shutil.which(f"python{version}"), *map(str, kept))):
            if subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
                return candidate
    raise UnavailableError(f"there is no Python of version {' or '.join(known)} on this machine")


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the peers' environments.")
    parser.add_argument("peers", nargs="*", default=PEERS, metavar="peer", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu", "tpu"))
    parser.add_argument("--resolve", action="store_true", help="only ask whether the packages go together")
    asked = parser.parse_args()
    for name in asked.peers:
        try:
            if asked.resolve:
                print(f"{name}: {', '.join(resolved(name, asked.device))}")
            else:
                print(f"{name}: {python_of(name, asked.device)}")
        except UnavailableError as error:
            print(f"{name}: not available, {error}")
