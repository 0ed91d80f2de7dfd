"""Whole private steps of one library on several devices of one host: a process of its environment, which scaling.py starts.

    python on_devices.py LIBRARY DEVICES WORKLOAD BATCH_SIZE STEPS

JAX's host is divided into so many devices by XLA_FLAGS, the batch over them, and every one has all parameters. Opacus has a
process for each device instead, over gloo. Prints the seconds of each step, after those that compile, and the version of what
computes, as a line of JSON.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

CLIP_NORM = NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 0.1
_BEFORE = 2  # steps that aren't counted
_DATA = 8  # times the batch: out of how many examples jaxdp draws it


def jaxdp_steps(devices: int, name: str, size: int, steps: int) -> list[float]:
    """A run's own step: a Poisson draw each, of data that are divided over the devices."""
    import jax
    import optax

    import jaxdp

    workload, by_rows, everywhere = _laid_out(devices, name, _DATA * size)
    run = jaxdp.DPSGD(
        num_examples=_DATA * size,
        expected_batch_size=size,
        steps=_BEFORE + steps,
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
    )
    step = run.make_step(workload.loss, optax.sgd(LEARNING_RATE))
    state = [step.init(jax.device_put(workload.params, everywhere), jax.random.key(0))]
    data = jax.device_put(workload.batch, by_rows)

    def call() -> None:
        state[0], _ = step(state[0], data)
        jax.block_until_ready(state[0].params)

    return _timed(call, steps)


def jax_privacy_steps(devices: int, name: str, size: int, steps: int) -> list[float]:
    """Its clipped gradient of a batch that is divided over the devices, under jit.

    Whole, or in microbatches of an example a device: the faster of both is timed.
    """
    import jax

    workload, by_rows, everywhere = _laid_out(devices, name, size)
    batch = jax.device_put(workload.batch, by_rows)
    calls = [_jax_privacy_call(workload, batch, everywhere, microbatch) for microbatch in (devices, None)]
    return _timed(min(calls, key=lambda call: _timed(call, 1)[0]), steps)


def _jax_privacy_call(workload: Any, batch: Any, everywhere: Any, microbatch: int | None) -> Callable[[], None]:
    import jax
    import jax_privacy
    from jax_privacy import noise_addition

    clipped = jax_privacy.clipped_grad(
        lambda params, batch: workload.batch_loss(params, batch).sum(),
        l2_clip_norm=CLIP_NORM,
        batch_argnums=1,
        microbatch_size=microbatch,
    )

    def step(params: Any, batch: Any, key: Any) -> Any:
        private = noise_addition.gaussian_privatizer(stddev=clipped.sensitivity() * NOISE_MULTIPLIER, prng_key=key)
        noisy, _ = private.update(clipped(params, batch), private.init(params))
        return jax.tree.map(lambda p, g: p - LEARNING_RATE / workload.batch_size * g, params, noisy)

    compiled = jax.jit(step, donate_argnums=0, out_shardings=everywhere)
    params = jax.tree.map(lambda leaf: jax.device_put(leaf.copy(), everywhere), workload.params)
    state = [params, jax.device_put(jax.random.key(0), everywhere)]

    def call() -> None:
        state[1], key = jax.random.split(state[1])
        state[0] = compiled(state[0], batch, key)
        jax.block_until_ready(state[0])

    return call


def opacus_steps(devices: int, name: str, size: int, steps: int) -> list[float]:
    """Ghost clipping in processes, each of which has its part of the batch and adds its part of the noise."""
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as room:
        asked = (f"file://{room}/meeting", devices, name, size, steps, answer)
        torch.multiprocessing.spawn(_opacus_process, asked, nprocs=devices)
    return answer.get()


def _opacus_process(rank: int, meeting: str, devices: int, name: str, size: int, steps: int, answer: Any) -> None:
    import torch
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from torch import nn

    if name != "mlp":
        raise SystemExit(f"only the MLP is laid out for Opacus here, not {name}")
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=devices)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // devices))
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    model = GradSampleModuleFastGradientClipping(
        DifferentiallyPrivateDistributedDataParallel(layers), max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    optimizer = DistributedDPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=size,
        loss_reduction="mean",
    )
    criterion: Any = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())
    inputs, labels = torch.randn(size // devices, 784), torch.randint(10, (size // devices,))

    def call() -> None:
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()

    seconds = _timed(call, steps)
    if rank == 0:
        answer.put(seconds)
    torch.distributed.destroy_process_group()


def _laid_out(devices: int, name: str, size: int) -> tuple[Any, Any, Any]:
    """A workload, and where rows and where parameters go."""
    import jax
    from jax_models import find_models

    find_models()
    from workloads import WORKLOADS

    if jax.device_count() != devices:
        sys.exit(f"JAX has {jax.device_count()} devices where {devices} were asked for: unset JAX_NUM_CPU_DEVICES")
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    by_rows, everywhere = (jax.NamedSharding(mesh, spec) for spec in (jax.P("data"), jax.P()))
    return WORKLOADS[name](size), by_rows, everywhere


def _timed(call: Callable[[], None], steps: int) -> list[float]:
    seconds = []
    for _ in range(_BEFORE + steps):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[_BEFORE:]


LIBRARIES = {"jaxdp": jaxdp_steps, "jax-privacy": jax_privacy_steps, "opacus": opacus_steps}

if __name__ == "__main__":
    library, *numbers = sys.argv[1:]
    seconds = LIBRARIES[library](int(numbers[0]), numbers[1], int(numbers[2]), int(numbers[3]))
    under = "torch" if library == "opacus" else "jax"
    print(json.dumps({"seconds": seconds, "versions": {under: importlib.metadata.version(under)}}))
