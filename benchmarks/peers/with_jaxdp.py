"""jaxdp: clipped gradients as they come, and by the plain method; a whole epoch by `DPSGD`, Poisson draws included."""

import functools
from collections.abc import Callable
from typing import Any

import jax_models
from protocol import Programs, Task, serve

MNIST_EXAMPLES = 60_000


def build(task: Task) -> Programs:
    """The programs of a mode: "auto", "vmap" or "plain", in either form of the model."""
    workload = jax_models.prepare(task)
    if task.mode.startswith("plain"):
        return jax_models.plain(task, workload)
    import jax
    import optax

    import jaxdp

    method = task.mode.split(",")[0]
    clipped = jaxdp.clipped_grad(workload.loss, clip_norm=task.clip_norm, method=method, precision=_precision(task))

    def step(params: Any, batch: Any, key: Any) -> Any:
        transform = jaxdp.dp_sgd(
            task.learning_rate, noise_multiplier=task.noise_multiplier, expected_batch_size=len(task.labels), key=key
        )
        out = clipped(params, batch)
        updates, _ = transform.update(out.grads, transform.init(params), params, sensitivity=out.sensitivity)
        return optax.apply_updates(params, updates)

    return jax_models.programs(
        workload, lambda params, batch: clipped(params, batch).grads, step, _epoch(task, workload, jax, jaxdp, optax)
    )


def _epoch(task: Task, workload: Any, jax: Any, jaxdp: Any, optax: Any) -> Callable[[int, Any], None]:
    """Steps of a described run: its own sampler, and batches of varying size."""

    @functools.cache  # a step is compiled once
    def described() -> Any:
        run = jaxdp.DPSGD(
            num_examples=MNIST_EXAMPLES,
            expected_batch_size=len(task.labels),
            steps=10**6,
            clip_norm=task.clip_norm,
            noise_multiplier=task.noise_multiplier,
        )
        return run.make_step(workload.loss, optax.sgd(task.learning_rate), precision=_precision(task))

    def epoch(steps: int, images: Any) -> None:
        step, arrays = described(), jax.device_put(images)
        state = step.init(workload.params, jaxdp.key_from_entropy())
        for _ in range(steps):
            state, _ = step(state, arrays)
        jax.block_until_ready(state.params)

    return epoch


def _precision(task: Task) -> str:
    """Of clipped sums: what the device reads, unless all of the comparison is in float32."""
    return "float32" if task.precision == "float32" else "auto"


if __name__ == "__main__":
    serve(build, jax_models.versions("jax", "flax", "optax"))
