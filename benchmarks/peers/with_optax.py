"""optax: `differentially_private_aggregate` on per-example gradients under `vmap`, and its clipping by microbatches."""

from typing import Any

import jax_models
from protocol import Programs, Task, serve


def build(task: Task) -> Programs:
    """The programs of a mode: "whole batch", "microbatch M" or "plain", in either form of the model."""
    workload = jax_models.prepare(task)
    if task.mode.startswith("plain"):
        return jax_models.plain(task, workload)
    import jax
    import optax
    from optax.contrib import differentially_private_aggregate

    each = jax.vmap(jax.grad(workload.loss), (None, 0))
    rows, size = jax_models.argument(task.mode), len(task.labels)

    def total(params: Any, batch: Any) -> Any:
        gradients, structure = jax.tree.flatten(each(params, batch))
        clipped, _ = optax.per_example_global_norm_clip(gradients, task.clip_norm)
        return jax.tree.unflatten(structure, clipped)

    def clipped(params: Any, batch: Any) -> Any:
        if rows is None:
            return total(params, batch)
        slices = jax.tree.map(lambda leaf: leaf.reshape(-1, rows, *leaf.shape[1:]), batch)
        add = lambda so_far, part: (jax.tree.map(jax.numpy.add, so_far, total(params, part)), None)
        return jax.lax.scan(add, jax.tree.map(jax.numpy.zeros_like, params), slices)[0]

    def step(params: Any, batch: Any, key: Any) -> Any:
        if rows is None:
            private = differentially_private_aggregate(task.clip_norm, task.noise_multiplier, key)
            mean, _ = private.update(each(params, batch), private.init(params))
            noisy = jax.tree.map(lambda leaf: leaf * size, mean)
        else:  # the aggregate takes a whole batch: by microbatches its parts are put together by hand
            noise = optax.tree.random_like(key, params, jax.random.normal)
            scale = task.clip_norm * task.noise_multiplier
            noisy = jax.tree.map(lambda g, n: g + scale * n, clipped(params, batch), noise)
        return jax_models.descended(params, noisy, task)

    return jax_models.programs(workload, clipped, step)


if __name__ == "__main__":
    serve(build, jax_models.versions("optax", "jax", "flax"))
