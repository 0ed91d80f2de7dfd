"""Several processes that train teachers together: the same as one process alone, and no teacher where they disagree."""

from pathlib import Path

import numpy as np
import pytest
from of_several import ended, free_address, started, together

SCRIPT = Path(__file__).with_name("in_processes.py")
REFUSED = (
    "key (",
    "data (",
    "num_teachers (",
    "epochs (",
    "process 1: batch_size=104 exceeds",
    "the program of a teacher (",
)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_two_processes_train_the_teachers_of_one_and_name_what_they_disagree_on(devices: int, tmp_path: Path) -> None:
    address = free_address()
    files = [tmp_path / f"{i}.npz" for i in range(2)]
    of_two = [[str(SCRIPT), str(file), address, "2", str(i)] for i, file in enumerate(files)]
    ones = started([[str(SCRIPT), str(tmp_path / "one.npz")]])
    ends = together(of_two, devices=devices)
    (one,) = ended(ones)
    assert one.code == 0, one.err
    alone = np.load(tmp_path / "one.npz")
    for i, (end, file) in enumerate(zip(ends, files, strict=True)):
        assert end.code == 0, end.err
        found = np.load(file)
        assert set(found) == set(alone)
        for name, expected in alone.items():
            np.testing.assert_array_equal(found[name], expected, err_msg=f"{name} in process {i}")
        lines = end.out.splitlines()[-len(REFUSED) :]
        for line, said in zip(lines, REFUSED, strict=True):
            assert said.removeprefix(f"process {i}: ") in line
