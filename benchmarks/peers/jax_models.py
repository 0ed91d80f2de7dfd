"""What the JAX libraries' processes share: the workload with the task's weights, its plain step, and programs made of both.

The models are those of benchmarks/workloads.py. The environments of optax and jax-privacy don't have jaxdp's own dependencies:
there its models are imported without the rest of it.
"""

import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol import NotOfferedError, Programs, Task

_ROOT = Path(__file__).resolve().parents[2]
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}


def prepare(task: Task) -> Any:
    """Set up JAX for the task and return its workload, with the task's weights and batch.

    A mode that ends in "flax's layers" gets the CNN in flax's own convolution and pooling.

    Raises:
        NotOfferedError: where the device isn't there, or the workload has no such form.
    """
    os.environ["JAX_PLATFORMS"] = _PLATFORMS[task.device]
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest" if task.precision == "float32" else "default"
    find_models()
    import jax
    from canonical import like
    from workloads import WORKLOADS, flax_cnn

    try:
        jax.devices()
    except RuntimeError as error:
        raise NotOfferedError(f"JAX finds no {task.device} here") from error
    make = WORKLOADS[task.workload]
    if task.mode.endswith("flax's layers"):
        if task.workload != "cnn":
            raise NotOfferedError("only the CNN has a second form")
        make = flax_cnn
    made: list[Any] = []
    jax.eval_shape(lambda: made.append(make(len(task.labels))))  # of its arrays, all replaced, the shapes are enough
    return made[0].replaced(like, task.weights, task.inputs, task.labels)


def find_models() -> None:
    """Let benchmarks/workloads.py be imported, and jaxdp's models with it, where jaxdp itself can't be."""
    sys.path.insert(0, str(_ROOT / "benchmarks"))
    if importlib.util.find_spec("tyro") is None:
        package = types.ModuleType("jaxdp")
        package.__path__ = [str(_ROOT / "jaxdp")]
        sys.modules["jaxdp"] = package


def programs(
    workload: Any,
    clipped: Callable[[Any, Any], Any],
    step: Callable[[Any, Any, Any], Any],
    epoch: Callable[[int, Any], None] | None = None,
) -> Programs:
    """A library's programs, compiled.

    Args:
        workload: as from `prepare`.
        clipped: (params, batch) to the clipped sum.
        step: (params, batch, key) to new parameters.
        epoch: as `Programs` has it.
    """
    import jax
    from canonical import canonical

    compiled_sum, compiled_step = jax.jit(clipped), jax.jit(step, donate_argnums=0)
    state = [jax.tree.map(jax.numpy.array, workload.params), jax.random.key(0)]

    def one_step(inputs: Any, labels: Any) -> Any:
        state[1], key = jax.random.split(state[1])
        state[0] = compiled_step(state[0], (inputs, labels), key)
        return state[0]

    stats = jax.devices()[0].memory_stats()
    return Programs(
        place=lambda inputs, labels: jax.device_put((inputs, labels)),
        clipped=lambda inputs, labels: compiled_sum(workload.params, (inputs, labels)),
        canonical=canonical,
        step=one_step,
        wait=jax.block_until_ready,
        peak_bytes=(lambda: jax.devices()[0].memory_stats()["peak_bytes_in_use"]) if stats else None,
        epoch=epoch,
    )


def plain(task: Task, workload: Any) -> Programs:
    """The non-private gradient and step, over the batch or over examples under `vmap`."""
    import jax

    if task.mode.startswith("plain, vmap"):
        total = lambda params, batch: jax.vmap(workload.loss, (None, 0))(params, batch).sum()
    else:
        total = lambda params, batch: workload.batch_loss(params, batch).sum()
    return programs(
        workload,
        lambda params, batch: jax.grad(total)(params, batch),
        lambda params, batch, key: descended(params, jax.grad(total)(params, batch), task),
    )


def descended(params: Any, gradient_sum: Any, task: Task) -> Any:
    """Parameters after a step of SGD on the mean gradient."""
    import jax

    rate = task.learning_rate / len(task.labels)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient_sum)


def versions(*packages: str) -> Callable[[], dict[str, str]]:
    """The versions of packages, when asked."""
    return lambda: {package: importlib.metadata.version(package) for package in packages}


def argument(mode: str) -> int | None:
    """The microbatch of a mode such as "microbatch 16, flax's layers"; None for "whole batch"."""
    first = mode.split(",")[0]
    return int(first.removeprefix("microbatch ")) if first.startswith("microbatch") else None
