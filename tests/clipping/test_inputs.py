"""What a gradient function refuses before anything is compiled, and a mask as a list."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental import sparse

import jaxdp

pytestmark = pytest.mark.usefixtures("unchecked")

PARAMS, BATCH = {"w": jnp.arange(3.0)}, np.ones((4, 3), np.float32)


def loss(params: Any, x: Any) -> Any:
    return params["w"] @ x


def changes_an_array(params: Any, x: Any) -> Any:
    held = jax.new_ref(jnp.zeros(()))
    held[...] = held[...] + params["w"] @ x
    return held[...]


@pytest.mark.slow
def test_a_list_of_bools_is_a_mask() -> None:
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=1.0)
    flags = [True, False, True, True]
    as_list, as_array = grad_fn(PARAMS, BATCH, mask=flags), grad_fn(PARAMS, BATCH, mask=np.array(flags))
    np.testing.assert_array_equal(as_list.grads["w"], as_array.grads["w"])


@pytest.mark.parametrize("method", ["auto", "ghost", "vmap"])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"mask": [1, 0, 1, 1]}, "mask has shape .* and dtype int"),
        ({"mask": [True, "a", True, True]}, "mask is list of <U5 and no array of numbers"),
        ({"mask": [[True], [True, False]]}, "mask is no array"),
        ({"mask": "1011"}, "mask='1011' is a str"),
        ({"mask": [True] * 3}, r"mask has shape \(3,\)"),
        ({"batch": np.array(["a", "b"])}, "batch is an array of <U1 and no array of numbers"),
        ({"batch": {"text": "abc"}}, r"batch\['text'\] is a str"),
        ({"batch": np.array([None, 1])}, "batch is an array of object"),
        ({"params": {"w": "abc"}}, r"params\['w'\] is a str and no array"),
        (
            {"params": {"w": jnp.arange(3.0), "activation": jnp.tanh}},
            r"params\['activation'\] is a .*equinox\.partition",
        ),
        ({"params": {"w": np.ma.ones(3, np.float32)}}, r"params\['w'\] is a masked array"),
        (
            {"params": {"w": np.ones(3, ">f4")}},
            r"params\['w'\] is of >f4, in another machine's byte order: give .*newbyteorder",
        ),
        ({"batch": np.ma.ones((4, 3), np.float32)}, "batch is a masked array, and its mask would be lost"),
        ({"batch": np.ones((4, 3), ">f4")}, "batch is of >f4, in another machine's byte order"),
        ({"mask": np.ma.array([True] * 4)}, "mask is a masked array"),
        ({"shared": (np.ma.ones(3),)}, r"shared\[0\] is a masked array"),
        ({"rng": 3}, "rng=3 is not a scalar JAX key"),
        ({"rng": jax.random.key(0)}, "loss_fn can't be called.*unexpected keyword argument 'rng'"),
        ({"shared": (1.0,)}, "loss_fn can't be called as loss_fn.params, example, shared 0.: too many positional"),
        ({"loss": lambda params: 0.0}, "loss_fn can't be called.*too many positional"),
        ({"loss": lambda params, x, rng: 0.0}, "loss_fn can't be called.*missing a required argument: 'rng'"),
        (
            {"loss": lambda params, x, key: 0.0},
            "missing a required argument: 'key'; each example's own key comes as rng",
        ),
        ({"loss": lambda params, x, y: 0.0}, "missing a required argument: 'y'.*one argument, as in x, y = example"),
        ({"params": jax.random.key(0)}, "params is a key: parameters come first"),
        ({"loss": changes_an_array}, r"changes an array where it is \(jax\.new_ref\)"),
        ({"loss": lambda params, x: "low"}, "what the loss returned is a str"),
        ({"loss": None}, "loss_fn=None is NoneType and can't be called"),
        ({"has_aux": "no"}, "has_aux='no' is str: give True or False"),
        ({"loss": lambda params, x: jnp.sum(x)}, "the loss doesn't depend on its parameters"),
        ({"loss": lambda params, x: loss(PARAMS, x)}, "the loss doesn't depend on its parameters.*closes over"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_every_method(
    method: str, keywords: dict[str, Any], message: str
) -> None:
    given = {"loss": loss, "has_aux": False, "params": PARAMS, "batch": BATCH, "shared": ()} | keywords
    loss_fn, has_aux, params, batch, shared = (
        given.pop(name) for name in ("loss", "has_aux", "params", "batch", "shared")
    )
    with pytest.raises(jaxdp.UsageError, match=message):
        jaxdp.clipped_grad(loss_fn, clip_norm=1.0, has_aux=has_aux, method=method)(params, batch, *shared, **given)


@pytest.mark.slow
def test_a_runs_batch_without_its_mask_is_refused() -> None:
    run = jaxdp.DPSGD(num_examples=40, expected_batch_size=8, steps=6, clip_norm=1.0, noise_multiplier=1.0)
    grad_fn, w, batch = run.clipped_grad(lambda w, x: jnp.vdot(w, x)), jnp.ones(3), jnp.ones((4, 3))
    with pytest.raises(jaxdp.UsageError, match=r"mask is missing.*twice its sensitivity.*mask=jnp.ones\(4, bool\)"):
        grad_fn(w, batch)
    assert grad_fn(w, batch, mask=jnp.ones(4, bool)).grads.shape == (3,)


@pytest.mark.parametrize("vmap_method", ["broadcast_all", "expand_dims"])
def test_a_foreign_function_that_gets_several_examples_is_refused(vmap_method: str) -> None:
    foreign = jax.ffi.ffi_call("of_nobody", jax.ShapeDtypeStruct((3,), jnp.float32), vmap_method=vmap_method)
    with pytest.raises(jaxdp.UsageError, match="calls a foreign function with several examples.*ffi_call"):
        jaxdp.clipped_grad(lambda params, x: params["w"] @ foreign(x), clip_norm=1.0)(PARAMS, BATCH)


def in_shard_map(body: Any, params: Any, batch: Any) -> Any:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.P(), jax.P("data"))
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=jax.P("data")))(params, batch)


SUMMED_OVER_DEVICES = r"varies over 'data' of jax.shard_map, and JAX would add up gradients"


# What a loss closes over is seen once it is computed; where "auto" and "ghost" ask JAX for its gradient, JAX refuses it.
@pytest.mark.parametrize(
    ("method", "of"), [*itertools.product(["auto", "ghost", "vmap"], ["batch", "shared"]), ("vmap", "closure")]
)
def test_gradients_that_jax_would_add_up_over_devices_are_refused(method: str, of: str) -> None:
    params, batch, alike = jnp.ones(2), jnp.ones((3, 2)), jnp.ones((5, 2))

    def body(params: Any, part: Any) -> Any:
        weighted = lambda params, x, *weight: jnp.sum(params * x) * (part[0, 0] if of == "closure" else 1.0)
        arguments = {"batch": (part,), "shared": (alike, jaxdp.Shared(part)), "closure": (alike,)}[of]
        return jaxdp.clipped_grad(weighted, clip_norm=1.0, method=method)(params, *arguments).grads[None]

    with pytest.raises(jaxdp.UsageError, match=SUMMED_OVER_DEVICES):
        in_shard_map(body, params, batch)


def test_per_example_gradients_that_jax_would_add_up_over_devices_are_refused() -> None:
    each = lambda params, part: jaxdp.per_example_grads(lambda params, x: jnp.sum(params * x))(params, part)
    with pytest.raises(jaxdp.UsageError, match=SUMMED_OVER_DEVICES):
        in_shard_map(each, jnp.ones(2), jnp.ones((3, 2)))


@pytest.mark.slow
def test_of_parameters_that_vary_as_the_batch_does_each_device_sums_its_own() -> None:
    grad_fn = jaxdp.clipped_grad(lambda params, x: jnp.sum(params * x), clip_norm=1.0, method="vmap")
    varying = lambda params, part: grad_fn(jax.lax.pcast(params, ("data",), to="varying"), part).grads[None]
    params, batch = jnp.ones(2), jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(in_shard_map(varying, params, batch)[0], grad_fn(params, batch).grads)


def drawn_by(impl: str, how: str, params: Any, example: Any, rng: Any) -> Any:
    """A loss with dropout by a key of that generator."""
    x, number = example
    by_id = lambda: jax.random.fold_in(jax.random.key(0, impl=impl), number)

    def in_scan(key: Any, _: None) -> tuple[Any, Any]:
        key, own = jax.random.split(key)
        return key, jax.random.bernoulli(own, 0.5, x.shape)

    kept = {
        "fold_in": lambda: jax.random.bernoulli(by_id(), 0.5, x.shape),
        "key": lambda: jax.random.bernoulli(jax.random.key(number, impl=impl), 0.5, x.shape),
        "among keys": lambda: jax.random.bernoulli(jax.random.split(by_id(), 3)[1], 0.5, x.shape),
        "in jit": lambda: jax.jit(lambda key, _: jax.random.bernoulli(key, 0.5, x.shape))(by_id(), rng),
        "in scan": lambda: jax.lax.scan(in_scan, by_id(), length=2)[1].any(axis=0),
        "in branch": lambda: jax.lax.cond(
            number > 1, lambda: jax.random.bernoulli(by_id(), 0.5, x.shape), lambda: x > 0
        ),
        "raw": lambda: jax.lax.rng_bit_generator(jnp.zeros(4, jnp.uint32) + number.astype(jnp.uint32), x.shape)[1] > 9,
        "rng": lambda: jax.random.bernoulli(rng, 0.5, x.shape),
        "rng in jit": lambda: jax.jit(lambda key, x: jax.random.bernoulli(key, 0.5, x.shape) & (x > 0))(rng, x),
        "closed over": lambda: jax.random.bernoulli(jax.random.key(0, impl=impl), 0.5, x.shape),
        "a rate of its own": lambda: jax.random.bernoulli(rng, jax.nn.sigmoid(x)),
    }[how]()
    return jnp.sum(params * jnp.where(kept, x, 0))


@pytest.mark.parametrize("method", ["auto", "vmap"])
@pytest.mark.parametrize("how", ["fold_in", "key", "among keys", "in jit", "in scan", "in branch", "raw"])
@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_examples_by_which_all_draw_as_the_first_are_refused(impl: str, how: str, method: str) -> None:
    grad_fn = jaxdp.clipped_grad(partial(drawn_by, impl, how), clip_norm=1.0, method=method)
    with pytest.raises(jaxdp.UsageError, match=r"follows from the example.*impl='threefry2x32'"):
        grad_fn(jnp.ones(2), (jnp.ones((3, 2)), jnp.arange(3)), rng=jax.random.key(1, impl=impl))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rng", "rng in jit", "closed over", "a rate of its own"])
@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg", "threefry2x32"])
def test_keys_of_positions_may_be_of_any_generator(impl: str, how: str) -> None:
    grad_fn = jaxdp.clipped_grad(partial(drawn_by, impl, how), clip_norm=1.0)
    grad_fn(jnp.ones(2), (jnp.ones((3, 2)), jnp.arange(3)), rng=jax.random.key(1, impl=impl))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fold_in", "key", "among keys", "in jit", "in scan", "in branch"])
def test_keys_of_examples_may_be_threefrys(how: str) -> None:
    grad_fn = jaxdp.clipped_grad(partial(drawn_by, "threefry2x32", how), clip_norm=1.0)
    grad_fn(jnp.ones(2), (jnp.ones((3, 2)), jnp.arange(3)), rng=jax.random.key(1))


def test_arrays_that_are_gone_are_named() -> None:
    params = {"w": jnp.ones(3)}
    jax.jit(lambda params: params, donate_argnums=0)(params)
    assert params["w"].is_deleted()
    with pytest.raises(jaxdp.UsageError, match=r"the arrays of params are gone \(params\['w'\]\)"):
        jaxdp.clipped_grad(lambda params, x: jnp.sum(params["w"] * x), clip_norm=1.0)(params, np.ones((2, 3)))


def test_batch_statistics_are_no_parameters() -> None:
    variables = {"params": {"w": jnp.ones(3)}, "batch_stats": {"mean": jnp.zeros(3)}}
    with pytest.raises(jaxdp.UsageError, match=r"give variables\['params'\] alone"):
        jaxdp.clipped_grad(lambda v, x: jnp.sum(v["params"]["w"] * x), clip_norm=1.0)(variables, np.ones((2, 3)))


class OnDisk:
    """What looks like an array, and is read whole at each use."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, *args: Any, **how: Any) -> np.ndarray:
        return self.array


def test_what_only_looks_like_an_array_is_refused() -> None:
    run = jaxdp.DPSGD(num_examples=6, expected_batch_size=3, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    rows = OnDisk(np.ones((6, 2), np.float32))
    step = run.make_step(lambda w, x: w @ x, optax.sgd(1.0))
    with pytest.raises(jaxdp.UsageError, match=r"is a OnDisk and no array of NumPy's or JAX's.*jaxdp.reading.Source"):
        step(step.init(jnp.ones(2), jax.random.key(0)), rows)
    with pytest.raises(jaxdp.UsageError, match=r"is a OnDisk and no array.*jaxdp.reading.Source"):
        next(run.sampler(jax.random.key(0)).take(rows))


@pytest.mark.slow
def test_a_sparse_batch_is_refused() -> None:
    rows = sparse.BCOO.fromdense(jnp.eye(4), n_batch=1)
    with pytest.raises(jaxdp.UsageError, match=r"batch holds a sparse array.*or give todense\(\)"):
        jaxdp.clipped_grad(lambda w, x: jnp.sum(x @ w), clip_norm=1.0)(jnp.ones(4), rows)


def test_running_statistics_of_nnx_are_refused_as_parameters() -> None:
    graph, state = nnx.split(nnx.BatchNorm(4, use_running_average=True, rngs=nnx.Rngs(0)))
    loss = lambda state, x: jnp.sum(nnx.merge(graph, state)(x))
    with pytest.raises(jaxdp.UsageError, match=r"params\['mean'\] are running statistics.*nnx.split\(model, nnx.Param"):
        jaxdp.clipped_grad(loss, clip_norm=1.0)(state, jnp.ones((3, 4)))
