"""What a private step refuses: optimizers that don't suit it, states that aren't its own, and to be traced."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxdp

pytestmark = pytest.mark.usefixtures("unchecked")

RUN = jaxdp.DPSGD(num_examples=8, expected_batch_size=4, steps=3, clip_norm=1.0, noise_multiplier=1.0)
PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
DATA = np.ones((8, 2), np.float32)


def loss(params: Any, x: Any, *shared: Any) -> Any:
    return jnp.sum(x @ params["w"] + params["b"]) * (shared[0] if shared else 1)


def micro_steps() -> Any:
    return optax.MultiSteps(optax.sgd(0.1), 4).gradient_transformation()


def start(optimizer: Any, params: Any = PARAMS) -> Any:
    return RUN.make_step(loss, optimizer).init(params, jax.random.key(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.MultiSteps(optax.sgd(0.1), 4),
        micro_steps,
        lambda: optax.chain(optax.clip(1.0), micro_steps()),
        lambda: optax.named_chain(("clip", optax.clip(1.0)), ("many", micro_steps())),
        lambda: optax.masked(micro_steps(), {"w": True, "b": False}),
        lambda: optax.partition({"many": micro_steps(), "one": optax.sgd(0.1)}, {"w": "many", "b": "one"}),
        lambda: optax.inject_hyperparams(lambda learning_rate: optax.chain(optax.scale(learning_rate), micro_steps()))(
            0.1
        ),
        lambda: optax.apply_if_finite(optax.chain(micro_steps()), 3),
        lambda: optax.chain(optax.sgd(0.1), optax.apply_every(4)),
    ],
)
def test_an_optimizer_that_accumulates_gradients_is_refused_wherever_it_is(make: Callable[[], Any]) -> None:
    with pytest.raises(
        jaxdp.UsageError, match=r"optimizer has optax\.(MultiSteps|apply_every) in it.*expected_batch_size"
    ):
        start(make())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "optimizer=None is a NoneType"),
        (dict, "is a dict: give an optax optimizer"),
        (lambda: optax.sgd, "optimizer=sgd makes optimizers and is none"),
        (lambda: optax.GradientTransformation, "optimizer=GradientTransformation makes optimizers and is none"),
        (optax.lbfgs, "missing 3 required.*further looks at the private data"),
        (optax.contrib.reduce_on_plateau, "missing 1 required.*further looks at the private data"),
        (lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), "further looks at the private data"),
        (optax.polyak_sgd, "further looks at the private data"),
        (
            lambda: jaxdp.dp_sgd(0.1, noise_multiplier=1, expected_batch_size=4, key=jax.random.key(1)),
            "adds the noise already",
        ),
        (lambda: optax.masked(optax.sgd(0.1), {"other": True}), "init.*fails"),
        (lambda: optax.sgd(math.nan), "optimizer computes with nan"),
        (lambda: optax.adam(jnp.float32(jnp.nan)), "optimizer computes with nan"),
        (lambda: optax.sgd(math.inf), "optimizer computes with -?inf"),
        (lambda: optax.sgd(optax.constant_schedule(math.nan)), "optimizer computes with nan"),
        (lambda: optax.inject_hyperparams(optax.sgd)(math.nan), "NaN in its state.*learning_rate"),
    ],
)
def test_an_optimizer_that_is_none_or_wants_more_than_a_gradient_is_refused(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        start(make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.adamw(optax.cosine_decay_schedule(0.1, 10)),
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(0.1)),
        lambda: optax.apply_if_finite(optax.rmsprop(0.1), 3),
        lambda: optax.contrib.schedule_free_sgd(0.1),
        lambda: optax.contrib.mechanize(optax.sgd(0.1)),
        lambda: optax.contrib.prodigy(),
        optax.adafactor,
    ],
)
def test_an_optimizer_of_any_kind_that_needs_gradients_alone_is_not(make: Callable[[], Any]) -> None:
    jax.eval_shape(RUN.make_step(loss, make()).init, PARAMS, jax.random.key(0))


@pytest.mark.slow
def test_an_nnx_module_whose_leaves_are_weights_is_a_pytree_of_parameters() -> None:
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    step = RUN.make_step(lambda net, x: jnp.sum(net(x) ** 2), optax.adam(0.1))
    state, _ = step(step.init(net, jax.random.key(0)), DATA)
    assert isinstance(state.params, nnx.Linear)
    assert not np.allclose(state.params.kernel[...], net.kernel[...])


def test_complex_parameters_are_told_to_be_given_as_two_parts() -> None:
    with pytest.raises(jaxdp.UsageError, match=r"dtype complex64, of which .*p\['re'\] \+ 1j \* p\['im'\]"):
        jaxdp.clipped_grad(lambda w, x: jnp.sum(jnp.abs(w * x)), clip_norm=1.0)(jnp.ones(2, jnp.complex64), jnp.ones(3))


def test_an_nnx_module_with_other_leaves_is_told_how_to_be_taken_apart() -> None:
    net = nnx.Dropout(0.1, rngs=nnx.Rngs(0))
    with pytest.raises(jaxdp.UsageError, match=r"dtype \w+, which has no gradient.*nnx\.split"):
        start(optax.sgd(0.1), net)


def test_parameters_to_which_no_update_can_be_added_are_refused() -> None:
    narrow = {"w": PARAMS["w"].astype(jnp.float8_e4m3fn), "b": PARAMS["b"]}
    with pytest.raises(jaxdp.UsageError, match=r"params\['w'\] has dtype float8_e4m3fn, to which optax adds no update"):
        start(optax.sgd(0.1), narrow)


def keeps_the_parameters_twice(params: Any) -> Any:
    return params, params, (jnp.zeros(3),) * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.GradientTransformation(
            keeps_the_parameters_twice, lambda means, state, params=None: (means, state)
        ),
        optax.contrib.prodigy,
        optax.contrib.dog,
    ],
)
def test_an_optimizer_that_keeps_the_parameters_has_them_to_itself(make: Callable[[], Any]) -> None:
    step = RUN.make_step(loss, make())
    state = step.init(PARAMS, jax.random.key(0))
    for _ in range(2):
        state, _ = step(state, DATA)
    assert state.step == 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"w": jnp.ones((2, 3)), "b": jnp.array([0.0, math.nan, 0.0])}, r"params\['b'\] holds NaN"),
        ({"w": jnp.ones((2, 3)), "b": "text"}, r"params\['b'\] is a str"),
        ({"w": jnp.ones((2, 3)), "b": jnp.tanh}, r"params\['b'\] is a .*Function and no array.*equinox.partition"),
    ],
)
def test_parameters_that_are_no_numbers_are_refused(params: Any, message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        start(optax.sgd(0.1), params)


def test_a_state_that_is_none_is_refused() -> None:
    step = RUN.make_step(loss, optax.sgd(0.1))
    state = step.init(PARAMS, jax.random.key(0))
    for wrong in ({}, None, tuple(state), PARAMS):
        with pytest.raises(jaxdp.UsageError, match=r"step: state is a .*begin with state = step.init"):
            step(wrong, DATA)  # pyright: ignore[reportArgumentType]
        with pytest.raises(jaxdp.UsageError, match=r"continue_from: state is a"):
            step.continue_from(wrong, jax.random.key(1))  # pyright: ignore[reportArgumentType]
    for made in (-1, 0.5, True, "0", None):
        with pytest.raises(jaxdp.UsageError, match="step: state.step="):
            step(state._replace(step=made), DATA)  # pyright: ignore[reportArgumentType]
    for restored in (state._asdict(), state._replace(step=np.array(3))):  # pyright: ignore[reportArgumentType]
        with pytest.raises(jaxdp.UsageError, match=r"restore it into a state: .*step.init\(params, key\)"):
            step(restored, DATA)  # pyright: ignore[reportArgumentType]


def test_a_step_within_a_transformation_is_refused_and_the_template_of_a_state_is_not() -> None:
    step = RUN.make_step(loss, optax.sgd(0.1))
    state = step.init(PARAMS, jax.random.key(0))
    assert jax.eval_shape(step.init, PARAMS, jax.random.key(0)).params["w"].shape == (2, 3)
    calls: list[Callable[[], Any]] = [
        lambda: jax.jit(step)(state, DATA),
        lambda: jax.jit(lambda data: step(state, data))(DATA),
        lambda: jax.jit(lambda: step(state, DATA))(),
        lambda: jax.jit(lambda scale: step(state, DATA, scale))(1.0),
        lambda: jax.vmap(lambda data: step(state, data))(DATA[None]),
        lambda: jax.lax.scan(lambda state, _: step(state, DATA), state, length=2),
        lambda: jax.eval_shape(lambda state: step.many(state, DATA, num_steps=2), state),
    ]
    for call in calls:
        with pytest.raises(jaxdp.UsageError, match=r"traced by jax.*step\.many"):
            call()


def test_rows_that_are_no_examples_are_not_to_be_counted_as_such() -> None:
    step = RUN.make_step(loss, optax.sgd(0.1))
    state = step.init(PARAMS, jax.random.key(0))
    with pytest.raises(jaxdp.UsageError, match=r"data has 16 examples.*Each example is in one row.*group_by_user"):
        step(state, np.concatenate([DATA, DATA]))
    with pytest.raises(
        jaxdp.UsageError, match=r"data has 2 examples.*A list is a tree of its items: stack the records"
    ):
        step(state, list(DATA))
    with pytest.raises(
        jaxdp.UsageError, match=r"\[0\]\['x'\]: 2, \[0\]\['y'\]: 1, \[1\]\['x'\]: 2, …\).*stack the records"
    ):
        step(state, [{"x": row, "y": row[:1]} for row in DATA])


@pytest.mark.slow
def test_parameters_that_a_step_took_are_told_where_they_are() -> None:
    step = RUN.make_step(loss, optax.sgd(0.1))
    state = step.init(PARAMS, jax.random.key(0))
    step(state, DATA)
    with pytest.raises(jaxdp.UsageError, match=r"the arrays of params are gone.*Copy them before"):
        step.init(state.params, jax.random.key(1))


def test_a_step_where_nothing_is_compiled_is_refused() -> None:
    step = RUN.make_step(loss, optax.sgd(0.1))
    with jax.disable_jit(), pytest.raises(jaxdp.UsageError, match="jax_disable_jit is set"):
        step(step.init(PARAMS, jax.random.key(0)), DATA)


@pytest.mark.slow
def test_a_state_whose_step_was_made_says_where_its_arrays_are_and_one_from_jit_goes_on() -> None:
    step = RUN.make_step(loss, optax.sgd(0.1))
    state = jax.jit(step.init)(PARAMS, jax.random.key(0))
    later, _ = step(state, DATA)
    assert (later.step, len(later.ledger.entries)) == (1, 1)
    assert type(later.step) is int
    for call in (lambda: step(state, DATA), lambda: step.continue_from(state, jax.random.key(1))):
        with pytest.raises(
            jaxdp.UsageError, match=r"arrays of the state are gone.*Go on with the state that it returned"
        ):
            call()


@pytest.mark.slow
def test_a_state_s_own_arrays_are_not_shared_with_its_step() -> None:
    run = jaxdp.DPSGD(num_examples=4, expected_batch_size=4, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    step = run.make_step(lambda w, x, teacher: jnp.sum((w - teacher) * x), optax.sgd(0.1))
    state = step.init(jnp.ones(3), jax.random.key(0))
    with pytest.raises(jaxdp.UsageError, match="what is shared holds arrays of the state itself"):
        step(state, jnp.ones((4, 3)), state.params)
    step(state, jnp.ones((4, 3)), jnp.copy(state.params))
