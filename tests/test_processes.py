"""Processes of one run agree, hear from the first, and are told of each other's errors; one alone does without."""

import jax
import pytest
from of_several import TESTS, free_address, together

from jaxdp import _interrupts, _processes
from jaxdp._errors import UsageError


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_processes_find_what_they_disagree_on_and_where(number: int) -> None:
    address = free_address()
    ends = together([[str(TESTS / "agreeing.py"), address, str(number), str(i)] for i in range(number)])
    where = {2: "process 1", 3: "processes 1, 2"}[number]
    data = "" if number == 2 else ", data (process 2 against process 0)"
    for end in ends:
        assert end.code == 0, end.err
        assert f"disagree on seed ({where} against process 0){data}: " in end.out


def test_a_process_alone_agrees_with_itself_and_does_what_it_is_asked() -> None:
    assert (_processes.several(), _processes.is_first(), jax.process_count()) == (False, True, 1)
    _processes.agree({"seed": "7"})
    assert _processes.gathered(b"own") == [b"own"]
    assert _processes.from_first(lambda: b"own") == b"own"
    with pytest.raises(UsageError, match="no room"):
        _processes.all_well(_no_room)


@pytest.mark.parametrize("length", [0, 1, 2**31 - 1, 2**31, 5 * 2**31 + 7])
def test_lengths_beyond_32_bits_are_told(length: int) -> None:
    assert _processes._length(_processes._as_row(length)) == length


@pytest.mark.parametrize(
    ("command", "its_own"),
    [
        (["python", "-m", "jaxdp", "train"], True),
        (["python", "-m", "jaxdp.cli", "train"], True),
        (["python", "-m", "pytest", "jaxdp"], False),
        (["python", "mine.py"], False),
    ],
)
def test_the_command_is_known_however_it_is_called(
    command: list[str], its_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.orig_argv", command)
    monkeypatch.setattr("sys.argv", ["__main__.py"])
    assert _interrupts._is_command() == its_own


@pytest.mark.parametrize("end", ["os.abort()", "pass"])
@pytest.mark.slow
def test_of_an_end_without_a_word_the_process_beside_it_tells(end: str) -> None:
    code = f"import os, sys; from jaxdp._meeting import _beside\nwith _beside('this goes on: it'):\n    {end}"
    (found,) = together([["-c", code]])
    assert ("this goes on: it" in found.err) == (end == "os.abort()"), found


def _no_room() -> bytes:
    raise UsageError("no room")
