"""A run on many devices is the same run: draws and noise to the bit, parameters to float rounding, wherever arrays are.

To the bit where programs are compiled as users have them compiled, as they are here.
"""

from pathlib import Path

import pytest
from of_several import TESTS, free_address, together

SCRIPT = Path(__file__).with_name("on_meshes.py")
RECORDED = Path(__file__).with_name("recorded_on_meshes.py")
MIXED = Path(__file__).with_name("on_mixed_meshes.py")


def on_eight_devices(*layouts: str) -> None:
    (end,) = together([[str(SCRIPT), *layouts]], devices=8, as_usual=True)
    assert end.out.splitlines()[-1:] == ["the same on every mesh"], end.err


@pytest.mark.slow
def test_a_run_divided_over_eight_devices_is_the_same_run() -> None:
    on_eight_devices("fully")


@pytest.mark.slow("minutes")
@pytest.mark.parametrize("part", ["some", "others", "beside"])
def test_a_run_is_the_same_on_every_mesh(part: str) -> None:
    on_eight_devices(part)


def in_two_processes(*layouts: str) -> None:
    address = free_address()
    commands = [[str(SCRIPT), "--of", address, "2", str(i), *layouts] for i in range(2)]
    for end in together(commands, devices=4, as_usual=True):
        assert end.code == 0, end
        assert "the same on every mesh" in end.out.splitlines(), end  # Gloo writes to it, too, and not in order


@pytest.mark.slow
def test_a_run_of_two_processes_is_the_same_run_or_refused_where_they_disagree() -> None:
    in_two_processes("fully")


@pytest.mark.slow("minutes")
def test_a_run_of_two_processes_is_the_same_on_meshes_that_both_have_a_part_of() -> None:
    in_two_processes("rows", "tensors, data everywhere")


@pytest.mark.slow
def test_what_a_run_releases_on_every_mesh_is_what_was_accounted_and_faults_are_found() -> None:
    (end,) = together([[str(RECORDED)]], devices=4)
    assert end.out.splitlines()[-1:] == ["as accounted"], end.err


@pytest.mark.slow
def test_whatever_is_divided_over_whatever_noise_and_sums_are_those_of_one_device() -> None:
    (end,) = together([[str(TESTS / "fuzz_meshes.py"), "--layouts", "6", "--seed", "1"]], devices=8)
    assert end.code == 0, end
    assert "6 layouts from seed 1: 0 wrong" in end.out


@pytest.mark.slow
def test_a_mesh_may_have_axes_of_both_types() -> None:
    (end,) = together([[str(MIXED)]], devices=4)
    assert end.out.splitlines()[-1:] == ["the same on every mesh"], end.err
