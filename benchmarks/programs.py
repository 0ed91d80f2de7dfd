"""The programs that the benchmarks of clipping compare: gradients, clipped ones, whole steps, and the noise by itself."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from workloads import Workload

import jaxdp

Program = Callable[[Any, Any], Any]
PLAIN_GRADIENTS = ("gradient, batched", "gradient, vmapped")
PLAIN_STEPS = ("whole step, plain, batched", "whole step, plain")  # of either gradient
PRIVATE_STEP = "whole step, private"


def programs_of(
    workload: Workload, methods: Iterable[str], step_method: str = "auto", **how: Any
) -> dict[str, Program]:
    """Functions of parameters and batch, by name.

    Args:
        workload: the model.
        methods: of clipping.
        step_method: of the private step.
        **how: else of all clipped gradients.
    """
    batched, vmapped = PLAIN_GRADIENTS
    mean = lambda loss: lambda p, b: jax.grad(lambda p: jnp.mean(loss(p, b)))(p)
    programs: dict[str, Program] = {
        batched: mean(workload.batch_loss),
        vmapped: mean(jax.vmap(workload.loss, (None, 0))),
    }
    for method in methods:
        programs[f"clipped, {method}"] = jaxdp.clipped_grad(workload.loss, clip_norm=1.0, method=method, **how)
    programs |= {step: _plain_step(programs[name]) for step, name in zip(PLAIN_STEPS, PLAIN_GRADIENTS, strict=True)}
    programs[PRIVATE_STEP] = private_step(workload, optax.sgd(0.1, momentum=0.9), method=step_method, **how)
    programs["noise alone"] = lambda p, b: jaxdp.noise.tree_normal(jax.random.key(b[1][0]), p)
    return programs


def reference_of(name: str) -> tuple[str, ...]:
    """The programs whose faster one a program is compared with."""
    return PLAIN_STEPS if name.startswith("whole step") else PLAIN_GRADIENTS


def _plain_step(gradient: Program) -> Program:
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(params: Any, batch: Any) -> Any:
        updates, _ = optimizer.update(gradient(params, batch), optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    return step


def private_step(workload: Workload, optimizer: optax.GradientTransformation, **how: Any) -> Program:
    """A step with noise and any optimizer, from its first state.

    Args:
        workload: the model.
        optimizer: what gets the noisy gradient.
        **how: of the clipped gradient.
    """
    noise = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=workload.batch_size, key=jax.random.key(0))
    chain = optax.chain(noise, optimizer)
    clipped = jaxdp.clipped_grad(workload.loss, clip_norm=1.0, **how)

    def step(params: Any, batch: Any) -> Any:
        out = clipped(params, batch)
        updates, _ = chain.update(out.grads, chain.init(params), params, sensitivity=out.sensitivity)
        return optax.apply_updates(params, updates)

    return step
