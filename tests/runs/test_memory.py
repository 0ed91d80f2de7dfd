"""The memory that a process may use: the least that the machine, its own limits and its container leave it."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxdp.runs import _memory


@pytest.mark.slow
def test_a_limit_set_on_the_process_counts() -> None:
    program = (
        "import resource; from jaxdp.runs import _memory\n"
        "assert _memory.memory_of_process() <= _memory.physical_memory()\n"
        "for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):\n"
        "    size = 2**32 if limit == resource.RLIMIT_AS else 2**31\n"
        "    resource.setrlimit(limit, (size, resource.RLIM_INFINITY))\n"
        "    print(_memory.memory_of_process() == min(size, _memory.physical_memory()))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "True"]


def test_the_least_of_a_containers_limits_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "one" / "two"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (tmp_path / "one" / "memory.max").write_text("12345678\n")
    (tmp_path / "memory.max").write_text("99999999999\n")
    monkeypatch.setattr(_memory, "_CGROUPS", tmp_path)
    assert _memory._limits_of("0::/one/two") == [12345678, 99999999999]
    assert _memory._limits_of("4:memory:/one") == []
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("4096\n")
    assert _memory._limits_of("4:memory:/one") == [4096]
    assert _memory._limits_of("5:devices:/one") == []
