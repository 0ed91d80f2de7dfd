"""On eight devices a private step asks for no more between devices than a plain one; work and noise are divided."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compiled_on_meshes.py")


def compiled_on_eight_devices(*layouts: str) -> None:
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, SCRIPT, *layouts], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["compiled as it must be"], done.stderr


@pytest.mark.slow
def test_with_its_parameters_divided_a_step_passes_what_a_plain_one_passes_and_draws_noise_where_leaves_are() -> None:
    compiled_on_eight_devices("fsdp")


@pytest.mark.slow
def test_in_every_layout_a_private_step_passes_nothing_between_devices_that_a_plain_one_does_not() -> None:
    compiled_on_eight_devices("replicated", "rows", "fsdp")
