"""What is chosen by the kind of device: the default one, not the process's backend, decides."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp import _platform
from jaxdp._platform import CPU, GPU, TPU, compiler_options, compiling_for, default_platform, is_known_to_compiler
from jaxdp.clipping._reducer import usual_microbatch_size
from jaxdp.runs._loop import steps_per_call


def on(patch: pytest.MonkeyPatch, platform: str, memory: int | None = None) -> None:
    statistics = None if memory is None else {"bytes_limit": memory}
    device = SimpleNamespace(platform=platform, memory_stats=lambda: statistics)
    patch.setattr(_platform.jax, "local_devices", lambda *_, **__: [device])


def test_a_default_device_comes_before_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = jax.devices("cpu")[0]
    assert default_platform() is CPU
    on(monkeypatch, "tpu")
    assert default_platform() is TPU
    with jax.default_device(cpu):
        assert default_platform() is CPU
    on(monkeypatch, "gpu")
    assert default_platform() is GPU


def test_what_is_traced_for_a_device_that_is_not_there_is_traced_as_on_it() -> None:
    grad_fn = jaxdp.clipped_grad(lambda w, x: jnp.sum(jnp.sin(x @ w)), clip_norm=1.0)
    program = lambda: str(jax.jit(lambda w, x: grad_fn(w, x).grads).trace(jnp.ones((5, 4)), jnp.ones((8, 3, 5))).jaxpr)
    here = program()
    with compiling_for("tpu"):
        assert default_platform() is TPU
        there = program()
    assert "bf16" in there
    assert "bf16" not in here
    assert default_platform() is CPU
    assert program() == here


def test_what_runs_often_is_compiled_for_wide_vectors_where_that_is_known_and_nobody_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compiler_options() == {"xla_cpu_prefer_vector_width": 512}
    assert not is_known_to_compiler("xla_cpu_of_another_version", 1)
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256")
        assert not compiler_options()
    with monkeypatch.context() as patch:
        patch.setattr(_platform, "is_known_to_compiler", lambda *_: False)
        assert not compiler_options()
    on(monkeypatch, "tpu")
    assert not compiler_options()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in ("cpu", "gpu")), "tpu"])
def test_a_platform_changes_how_a_sum_is_computed_and_never_what_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = lambda w, x: jnp.sum(jnp.sin(x @ w))
    params, batch = jnp.ones((5, 4)), jnp.asarray(np.random.default_rng(0).normal(size=(8, 3, 5)), jnp.float32)
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=1.0)
    usual = grad_fn(params, batch)
    on(monkeypatch, name, memory=2**20)
    out = grad_fn(params, batch)
    as_rounded = name == "tpu"
    np.testing.assert_allclose(out.grads, usual.grads, rtol=2e-2 if as_rounded else 1e-5, atol=2e-2)
    held = replace(grad_fn, precision="float32")(params, batch)
    np.testing.assert_allclose(held.grads, usual.grads, rtol=1e-5, atol=1e-5)


def test_a_type_that_a_device_would_round_once_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    grad_fn = jaxdp.clipped_grad(lambda w, x: jnp.vdot(w, x), clip_norm=1.0, precision="tensorfloat32")
    grad_fn(jnp.ones(3), jnp.ones((2, 3)))
    on(monkeypatch, "tpu")
    with pytest.raises(jaxdp.UsageError, match="is for GPUs: a TPU would round the factors again"):
        grad_fn(jnp.ones(3), jnp.ones((2, 3)))


def test_what_a_device_has_of_memory_bounds_a_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    def size(platform: str, memory: int | None) -> Any:
        on(monkeypatch, platform, memory)
        return usual_microbatch_size(1024, 2**20, 2**10)

    assert size("gpu", 2**40) == 1024
    assert size("gpu", 2**30) == 256
    assert size("tpu", 2**29) == 128
    assert size("cpu", 2**40) == 16


def test_steps_of_a_call_divide_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_per_call(60) == 1
    on(monkeypatch, "gpu")
    assert steps_per_call(120) == 60
    assert steps_per_call(59) == 59
