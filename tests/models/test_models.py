"""The tutorials' models: shapes, parameter counts, and convolutions that are convolutions."""

import functools
from typing import Any

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp.data import Classes
from jaxdp.models import MODELS, Dense, PatchConv, WeightNormDense, classifier, classifier_of, erased
from jaxdp.models._cnn import max_pool
from jaxdp.models._patches import patches


@pytest.mark.parametrize(("name", "size"), [("cnn", 26_010), ("mlp", 784 * 256 + 256 + 256 * 64 + 64 + 650)])
def test_the_models_have_the_tutorials_parameters(name: str, size: int) -> None:
    model = MODELS[name](num_classes=10)
    init = functools.partial(model.init, train=False)
    params = jax.eval_shape(init, jax.random.key(0), jnp.zeros((28, 28, 1), jnp.uint8))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size
    assert set(params) == {"params"}


@pytest.mark.slow
def test_the_models_take_other_shapes_of_images() -> None:
    for name in sorted(MODELS.keys() - {"dense"}):
        model = MODELS[name](num_classes=7)
        image = jnp.zeros((32, 40, 3), jnp.uint8)
        if hasattr(model, "prepare"):
            image = jax.jit(model.prepare)(image)
        init, apply = (jax.jit(functools.partial(call, train=False)) for call in (model.init, model.apply))
        params = init(jax.random.key(0), image)
        assert apply(params, image).shape == (7,)


@pytest.mark.slow
@hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
@hypothesis.given(
    height=st.sampled_from((8, 13)),
    width=st.sampled_from((8, 11)),
    channels=st.sampled_from((1, 3)),
    blocks=st.integers(1, 4),
    stride=st.integers(1, 2),
)
def test_a_patch_convolution_is_a_convolution(height: int, width: int, channels: int, blocks: int, stride: int) -> None:
    window = blocks * stride
    x = jax.random.normal(jax.random.key(0), (height, width, channels))
    layer = PatchConv(5, window=window, stride=stride)
    variables = layer.init(jax.random.key(1), x)
    # The kernel's rows in the order in which `patches` lays a window out: that of its own pixels' numbers.
    numbers = jnp.arange(window * window * channels, dtype=jnp.float32).reshape(window, window, channels)
    order = np.asarray(patches(numbers, window, stride)).reshape(-1).astype(int)
    kernel = np.zeros((window * window * channels, 5), np.float32)
    kernel[order] = variables["params"]["kernel"]
    expected = jax.lax.conv_general_dilated(
        x[None],
        jnp.asarray(kernel.reshape(window, window, channels, 5)),
        (stride, stride),
        "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=jax.lax.Precision.HIGHEST,
    )[0]
    np.testing.assert_allclose(layer.apply(variables, x), expected, atol=1e-4)  # pyright: ignore


def test_max_pool_is_max_pooling() -> None:
    x = jax.random.normal(jax.random.key(0), (9, 7, 3))
    np.testing.assert_array_equal(max_pool(x), nn.max_pool(x, (2, 2)))


@pytest.mark.slow
def test_the_mlp_drops_units_in_training_only() -> None:
    model, image = MODELS["mlp"](num_classes=10), jnp.full((28, 28, 1), 200, jnp.uint8)
    params = jax.jit(functools.partial(model.init, train=False))(jax.random.key(0), image)
    train = jax.jit(lambda key: model.apply(params, image, train=True, rngs={"dropout": key}))
    out = [train(jax.random.key(k)) for k in (1, 2)]
    assert not np.array_equal(*out)
    still = [model.apply(params, image, train=False) for _ in range(2)]
    np.testing.assert_array_equal(*still)


@pytest.mark.slow
def test_a_column_of_a_weight_normalised_layer_has_the_length_that_was_learnt() -> None:
    layer, x = WeightNormDense(5), jax.random.normal(jax.random.key(0), (7,))
    params: Any = jax.tree.map(lambda leaf: leaf + 0.3, layer.init(jax.random.key(1), x))
    v, g, b = (params["params"][name] for name in ("kernel", "scale", "bias"))
    np.testing.assert_allclose(layer.apply(params, x), x @ (g * v / jnp.linalg.norm(v, axis=0)) + b, rtol=1e-5)  # pyright: ignore
    true = jax.jit(jax.grad(lambda v: jnp.sin(x @ (g * v / jnp.linalg.norm(v, axis=0)) + b).sum()))(v)
    found = jax.jit(jax.grad(lambda p: jnp.sin(layer.apply(p, x)).sum()))(params)["params"]["kernel"]  # pyright: ignore
    unit = v / jnp.linalg.norm(v, axis=0)
    across = found - unit * (unit * found).sum(axis=0)  # what changes the function
    np.testing.assert_allclose(across, true, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_dense_network_normalises_each_record_on_its_own() -> None:
    model, x = Dense(num_classes=3, hidden=(8, 6)), jax.random.normal(jax.random.key(0), (4, 9))
    params = jax.jit(functools.partial(model.init, train=False))(jax.random.key(1), x[0])
    together: Any = jax.jit(jax.vmap(lambda row: model.apply(params, row, train=False)))(x)
    np.testing.assert_allclose(together[2], model.apply(params, x[2], train=False), rtol=1e-5)  # pyright: ignore
    half: Any = Dense(num_classes=3, hidden=(8, 6), dtype=jnp.bfloat16).apply(params, x[2], train=False)
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, together[2], atol=0.1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("dense", {"hiden": (3,)}, "takes no hiden=: it takes activation, hidden"),
        ("dense", {"hidden": 3}, "hidden=3 is a int"),
        ("dense", {"hidden": (3.5,)}, "must be a whole number"),
        ("dense", {"dropout": 1.0}, "would drop every unit"),
        ("dense", {"dtype": "int8"}, "dtype='int8' is not known"),
        ("dense", {"activation": "gelu"}, "activation='gelu' is not known"),
        ("nope", {}, "nope is not known"),
    ],
)
def test_what_a_model_can_do_nothing_with_is_refused(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        classifier(name, Classes(3), input_shape=(4,), input_dtype=np.float32, **given)


@pytest.mark.usefixtures("unchecked")
def test_windows_squares_descriptions_and_inputs_that_are_none_are_refused() -> None:
    image, key = jnp.zeros((8, 8, 1)), jax.random.key(0)
    with pytest.raises(jaxdp.UsageError, match="window=5 is no multiple of stride=2"):
        PatchConv(4, window=5, stride=2).init(key, image)
    for wrong, said in (({"image": image[..., 0]}, "has shape"), ({"image": image.astype(jnp.uint8)}, "give floats")):
        with pytest.raises(jaxdp.UsageError, match=said):
            erased(**({"key": key, "image": image} | wrong))
    with pytest.raises(jaxdp.UsageError, match="side is NaN"):
        erased(key, image, side=float("nan"))
    with pytest.raises(jaxdp.UsageError, match="has no kind: give a task"):
        classifier("dense", 3, input_shape=(4,), input_dtype=np.float32)  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxdp.UsageError, match="input_dtype=None is no dtype"):
        classifier("dense", Classes(3), input_shape=(4,), input_dtype=None)
    with pytest.raises(jaxdp.UsageError, match="described has no 'model'"):
        classifier_of({})
    taken = {"hidden": np.array([3]), "dtype": jnp.bfloat16}
    model = classifier("dense", Classes(3), input_shape=(4,), input_dtype=np.float32, **taken)
    assert model.described["architecture"] == {"hidden": (3,), "dtype": "bfloat16"}
    with pytest.raises(jaxdp.UsageError, match="inputs has no rows"):
        model.predict(model.init(key), np.zeros((0, 4), np.float32))


@pytest.mark.parametrize(("name", "side"), [("cnn", 5), ("cnn", 12), ("strided", 8), ("strided", 16)])
def test_images_that_are_too_small_for_a_model_are_refused(name: str, side: int) -> None:
    with pytest.raises(jaxdp.UsageError, match="give larger (images|inputs)"):
        classifier(name, Classes(3), input_shape=(side, side, 1), input_dtype=np.uint8, activation="relu")
