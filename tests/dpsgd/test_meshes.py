"""A run on many devices is the same run: draws and noise to the bit, parameters to float rounding, wherever arrays are."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("on_meshes.py")


def on_eight_devices(*layouts: str) -> None:
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, SCRIPT, *layouts], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["the same on every mesh"], done.stderr


def test_a_run_with_its_data_or_all_of_it_divided_over_eight_devices_is_the_same_run() -> None:
    on_eight_devices("one", "rows", "fully")


@pytest.mark.slow
def test_a_run_is_the_same_on_every_mesh() -> None:
    on_eight_devices()


OF_TWO_PROCESSES = """
import sys, jax, jax.numpy as jnp, optax, jaxdp
jax.distributed.initialize("localhost:" + sys.argv[1], 2, int(sys.argv[2]))
mesh = jax.make_mesh((2,), ("data",), devices=jax.devices())
data = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, jax.P("data")))
run = jaxdp.DPSGD(num_examples=8, expected_batch_size=4, steps=3, clip_norm=1.0, noise_multiplier=1.0)
step = run.make_step(lambda w, x: jnp.sum(w * x), optax.sgd(0.1), self_check=False)
try:
    step(step.init(jnp.ones(2), jax.random.key(0)), data)
except jaxdp.UsageError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_mesh_of_several_processes_is_refused_until_they_agree_on_keys() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", OF_TWO_PROCESSES, port]
    both = [
        subprocess.Popen([*command, str(i)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    for process in both:
        out, error = process.communicate(timeout=120)
        assert "is of several processes" in out, error
