"""Checks of single numbers, and of arrays."""

import copy
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import UsageError, _checks


@pytest.mark.parametrize("name", ["clip_norm", "max_grad_norm", "l2_norm_clip"])
def test_an_optimizer_says_where_a_clip_norm_goes(name: str) -> None:
    arguments: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "expected_batch_size": 4.0,
        "key": jax.random.key(0),
        name: 1.0,
    }
    for optimizer in (jaxdp.dp_sgd, jaxdp.dp_adam):
        with pytest.raises(UsageError, match=f"no argument {name}: give clip_norm to jaxdp.DPSGD"):
            optimizer(0.1, **arguments)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), np.float64(2)])
def test_numbers_of_any_concrete_type_become_plain_floats(value: Any) -> None:
    assert type(_checks.real("x", value, "fix")) is float
    assert _checks.count("x", value, "fix") == 2
    assert type(_checks.count("x", value, "fix")) is int


@pytest.mark.parametrize("value", ["2", None, True, 1j, np.complex64(1), np.ones(2), jnp.float32(2), [2.0]])
def test_what_is_not_one_plain_real_number_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="x=.* is not a plain number.*the fix"):
        _checks.real("x", value, "the fix")


def test_a_traced_number_is_refused() -> None:
    with pytest.raises(UsageError, match="x is traced"):
        jax.jit(lambda x: _checks.positive("x", x, "fix"))(1.0)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_positive_refuses_the_rest(value: float) -> None:
    with pytest.raises(UsageError):
        _checks.positive("x", value, "fix")


def test_count_refuses_fractions() -> None:
    with pytest.raises(UsageError, match="whole number"):
        _checks.count("x", 1.5, "fix")


@pytest.mark.parametrize(("value", "examples"), [(0.0, None), (1.0, None), (-1e-5, None), (1e-3, 1000), (0.2, 9)])
def test_a_delta_outside_its_range_or_not_below_one_over_n_is_refused(value: float, examples: int | None) -> None:
    with pytest.raises(UsageError, match="delta="):
        _checks.delta(value, examples)


def test_one_of_lists_what_is_known() -> None:
    with pytest.raises(UsageError, match="method='magic' is not known; choose one of these: a, b"):
        _checks.one_of("method", "magic", ("b", "a"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda **how: jaxdp.DPSGD(max_grad_norm=1.0, **how),
            "DPSGD has no argument max_grad_norm: did you mean clip_norm?",
        ),
        (lambda **how: jaxdp.DPSGD(batch_size=9, **how), "did you mean expected_batch_size?"),
        (
            lambda **how: jaxdp.DPSGD(batch_size=9, expected_batch_size=9, **how),
            "that is expected_batch_size here, which is given, too",
        ),
        (lambda **how: jaxdp.DPSGD(clip_nrm=1.0, **how), "did you mean clip_norm?"),
        (lambda **how: jaxdp.clipped_grad(abs, l2_norm_clip=1.0), "did you mean clip_norm?"),
        (lambda **how: jaxdp.privatize(std=1.0, **how), "did you mean noise_multiplier?"),
        (lambda **how: jaxdp.privatize(seed=0, **how), "did you mean key?"),
        (lambda **how: jaxdp.clip_and_privatize(max_norm=1.0, **how), "did you mean clip_norm?"),
        (lambda **how: jaxdp.dp_sgd(lr=0.1, **how), "did you mean learning_rate?"),
        (lambda **how: jaxdp.dp_adam(0.1, sigma=1.0), "did you mean noise_multiplier?"),
        (lambda **how: jaxdp.accounting.epsilon(q=0.1, **how), "did you mean sample_rate?"),
        (lambda **how: jaxdp.accounting.noise_multiplier(target_epsilon=1.0), "did you mean epsilon?"),
        (lambda **how: jaxdp.accounting.steps(target_delta=1e-5), "did you mean delta?"),
        (lambda **how: jaxdp.accounting.batch_size(n=50), "did you mean num_examples?"),
        (lambda **how: jaxdp.clipping.PerGroup(groups={}), "did you mean labels?"),
    ],
)
def test_an_argument_that_is_misspelt_or_another_librarys_is_answered_with_the_one_here(call: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        call(steps=3)
    assert said in str(error.value)


@pytest.mark.parametrize(("make", "unnamed"), [(jaxdp.DPSGD, (60_000, 256)), (jaxdp.privatize, (1.0,))])
def test_arguments_without_their_names_are_answered_with_these(make: Any, unnamed: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match=r"takes these arguments by their names alone: \w+, expected_batch_size, "):
        make(*unnamed)


def test_what_other_libraries_have_is_answered_with_what_is_here() -> None:
    run: Any = jaxdp.DPSGD(num_examples=9, expected_batch_size=3, steps=1, clip_norm=1.0, noise_multiplier=1.0)
    for name in ("PrivacyEngine", "DPKerasSGDOptimizer", "compute_dp_sgd_privacy"):
        with pytest.raises(ImportError, match=f"jaxdp has no {name}: .*run"):
            getattr(jaxdp, name)
    with pytest.raises(ImportError, match="jaxdp has no PrivacyEngine: describe the run"):
        exec("from jaxdp import PrivacyEngine", {})
    with pytest.raises(AttributeError, match=r"DPSGD has no get_epsilon: run.epsilon\(delta="):
        run.get_epsilon(1e-5)
    nobodys = "colour"
    with pytest.raises(AttributeError, match="DPSGD has no colour$"):
        getattr(run, nobodys)
    with pytest.raises(AttributeError, match="No jaxdp attribute colour"):
        getattr(jaxdp, nobodys)
    assert not hasattr(run, "get_epsilon")
    assert pickle.loads(pickle.dumps(run)) == run == copy.deepcopy(run)
    known = {"num_examples": 9, "expected_batch_size": 3, "steps": 1, "clip_norm": 1.0}
    make: Any = jaxdp.DPSGD
    for name, said in (("grad_sample_mode", "leave it out"), ("clipping", "PerGroup"), ("learning_rate", "optimizer")):
        with pytest.raises(UsageError, match=f"DPSGD has no argument {name}: .*{said}"):
            make(**known, noise_multiplier=1.0, **{name: 1})


def test_an_optimizer_in_the_place_of_the_loss_is_told(unchecked: None) -> None:
    run = jaxdp.DPSGD(num_examples=9, expected_batch_size=3, steps=1, clip_norm=1.0, noise_multiplier=1.0)
    loss: Any = optax.sgd(0.1)
    optimizer: Any = lambda w, x: w @ x
    with pytest.raises(UsageError, match=r"the loss comes first, make_step\(loss_fn, optimizer\)"):
        run.make_step(loss, optimizer)


def test_an_argument_that_is_like_no_other_is_left_to_python_and_signatures_stay() -> None:
    privatize: Any = jaxdp.privatize
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        privatize(noise_multiplier=1.0, expected_batch_size=4, key=jax.random.key(0), colour="red")
    assert list(inspect.signature(privatize).parameters) == [
        "noise_multiplier",
        "expected_batch_size",
        "key",
        "noise",
        "steps",
    ]
    assert next(iter(inspect.signature(jaxdp.DPSGD).parameters)) == "num_examples"
    assert jaxdp.dp_adam(0.1, eps=1e-6, noise_multiplier=1.0, expected_batch_size=4, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("num_microbatches", "each example is clipped by itself"),
        ("epochs", "give steps, which are epochs"),
        ("target_epsilon", "run.with_noise_for"),
        ("sample_rate", "give expected_batch_size"),
        ("delta", "where epsilon is asked for"),
    ],
)
def test_what_others_have_and_jaxdp_has_not_is_answered_with_what_to_do(name: str, said: str) -> None:
    described: Any = {
        "num_examples": 8,
        "expected_batch_size": 4,
        "steps": 2,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
    }
    with pytest.raises(jaxdp.UsageError, match=said):
        jaxdp.DPSGD(**described, **{name: 4})
    run, other = jaxdp.DPSGD(**described), {"target_epsilon": 1.0, "delta": 1e-5}
    with pytest.raises(jaxdp.UsageError, match="did you mean epsilon"):
        run.with_noise_for(**other)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 2**20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_nan_and_infinity_are_seen_in_arrays_of_any_size_and_type(dtype: str, size: int) -> None:
    values = jnp.ones(size, dtype)
    assert not _checks.has_nan(values, or_infinity=True)
    assert _checks.has_nan(values.at[-1].set(jnp.nan))
    if dtype != "float8_e4m3fn":  # which has no infinity
        infinite = values.at[0].set(jnp.inf)
        assert not _checks.has_nan(infinite)
        assert _checks.has_nan(infinite, or_infinity=True)
