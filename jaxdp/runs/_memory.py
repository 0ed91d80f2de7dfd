"""How much memory this process may use: the least that the machine, the process's limits and its container leave it."""

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def memory_of_process() -> int | None:
    """Bytes of memory that this process may use in all; None where nobody tells."""
    known = (physical_memory(), *_limits(), *_limits_of_container())
    return min((each for each in known if each is not None), default=None)


def physical_memory() -> int | None:
    """Bytes of memory of the machine; None where it doesn't tell."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits() -> list[int]:
    """Those set on the process, as `ulimit -d` and `-v` do."""
    try:
        import resource
    except ImportError:  # on Windows
        return []
    found = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    return [each for each in found if each != resource.RLIM_INFINITY]


def _limits_of_container() -> list[int]:
    """Those of the control groups that the process is in."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:  # it's no Linux
        return []
    return [limit for line in lines for limit in _limits_of(line)]


def _limits_of(line: str) -> list[int]:
    """Those of one control group, by its line in /proc/self/cgroup, and of the ones that it is in."""
    _, controllers, path = line.split(":", 2)
    if controllers == "":
        found = [_number(folder / "memory.max") for folder in _upwards(_CGROUPS, path)]
    elif "memory" in controllers.split(","):
        found = [_number(folder / "memory.limit_in_bytes") for folder in _upwards(_CGROUPS / "memory", path)]
    else:
        found = []
    return [each for each in found if each is not None]


def _upwards(root: Path, path: str) -> list[Path]:
    """The folder of a control group and those above it, as far as they are seen here."""
    own = root / path.lstrip("/")
    return [own, *(folder for folder in own.parents if folder == root or root in folder.parents)]


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or a word such as max."""
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
