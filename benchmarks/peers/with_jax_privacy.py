"""jax-privacy: `clipped_grad` over the whole batch or by microbatches, and its Gaussian privatizer."""

from typing import Any

import jax_models
from protocol import Programs, Task, serve


def build(task: Task) -> Programs:
    """The programs of a mode: "whole batch", "microbatch M" or "plain", in either form of the model."""
    workload = jax_models.prepare(task)
    if task.mode.startswith("plain"):
        return jax_models.plain(task, workload)
    import jax_privacy
    from jax_privacy import noise_addition

    def loss(params: Any, batch: Any) -> Any:
        return workload.batch_loss(params, batch).sum()

    clipped = jax_privacy.clipped_grad(
        loss, l2_clip_norm=task.clip_norm, batch_argnums=1, microbatch_size=jax_models.argument(task.mode)
    )

    def step(params: Any, batch: Any, key: Any) -> Any:
        scale = clipped.sensitivity() * task.noise_multiplier
        private = noise_addition.gaussian_privatizer(stddev=scale, prng_key=key)
        noisy, _ = private.update(clipped(params, batch), private.init(params))
        return jax_models.descended(params, noisy, task)

    return jax_models.programs(workload, clipped, step)


if __name__ == "__main__":
    serve(build, jax_models.versions("jax-privacy", "jax", "flax"))
