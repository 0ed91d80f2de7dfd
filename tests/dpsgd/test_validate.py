"""What stands against private training is found, by its place in the model; and memory is told before a step is made."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxdp
from jaxdp.models import CNN, MLP, Dense

EXAMPLE = jax.ShapeDtypeStruct((4,), jnp.float32)


class Block(nn.Module):
    norm: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(nn.Dense(8)(x))


class Counter(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        seen = self.variable("memory", "sum", jnp.zeros, ())
        seen.value += x.sum()
        return nn.Dense(2)(x)


class Net(nn.Module):
    norm: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(2)(Block(self.norm, name="encoder")(x))


def test_batch_normalisation_is_named_by_its_path_with_a_substitute() -> None:
    found = jaxdp.validate(Net(lambda x: nn.BatchNorm(use_running_average=False)(x)), EXAMPLE)
    (obstacle,) = found.obstacles
    assert obstacle.path == "encoder/BatchNorm_0"
    with pytest.raises(jaxdp.UsageError, match=r"encoder/BatchNorm_0 .* use LayerNorm, .* or GroupNorm"):
        found.check()


def test_other_state_is_named_by_its_layer() -> None:
    (obstacle,) = jaxdp.validate(Block(Counter()), EXAMPLE).obstacles
    assert obstacle.path == "norm"
    assert "memory" in obstacle.kind


class Sowing(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.Dense(4)(x)
        self.sow("losses", "aux", jnp.mean(y**2))
        return y


class Boxed(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mean: Any = self.variable("stats", "mean", nn.with_partitioning(jnp.zeros, (None,)), x.shape).value
        return x + mean


class OwnNorm(nn.BatchNorm):
    """Batch normalisation by another name."""


def test_state_within_other_containers_is_named_by_its_layer() -> None:
    for model, collection in ((Sowing(), "losses"), (Boxed(), "stats")):
        (obstacle,) = jaxdp.validate(Block(model), EXAMPLE).obstacles
        assert obstacle.path == "norm"
        assert collection in obstacle.kind


def test_a_layer_made_of_a_known_one_is_that_one() -> None:
    (obstacle,) = jaxdp.validate(Block(OwnNorm(use_running_average=False)), EXAMPLE).obstacles
    assert "BatchNorm" in obstacle.kind
    assert "GroupNorm" in obstacle.substitute
    assert not jaxdp.validate(Block(OwnNorm(use_running_average=True)), EXAMPLE).obstacles


def test_a_layer_of_nnx_or_equinox_made_of_a_known_one_is_that_one() -> None:
    class OwnOfNnx(nnx.BatchNorm): ...

    class OwnOfEquinox(eqx.nn.BatchNorm): ...

    of_nnx, of_equinox = OwnOfNnx(4, rngs=nnx.Rngs(0)), OwnOfEquinox(4, "batch", mode="batch")
    for model in (of_nnx, of_equinox):
        (obstacle,) = jaxdp.validate(model).obstacles
        assert obstacle.kind == "BatchNorm"
    of_nnx.eval()
    for model in (of_nnx, eqx.nn.inference_mode(of_equinox)):
        jaxdp.validate(model).check()


def test_models_that_keep_nothing_pass() -> None:
    for model, shape, dtype in (
        (CNN(num_classes=10), (28, 28, 1), jnp.uint8),
        (MLP(num_classes=10), (28, 28, 1), jnp.uint8),
        (Dense(num_classes=5, hidden=(8,)), (4,), jnp.float32),
    ):
        jaxdp.validate(model, jax.ShapeDtypeStruct(shape, dtype), train=True).check()
    jaxdp.validate(Block(nn.LayerNorm()), EXAMPLE).check()
    assert "nothing" in str(jaxdp.validate(Block(nn.LayerNorm()), EXAMPLE))


def test_nnx_models_are_looked_through_as_well() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.dense, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)

    (obstacle,) = jaxdp.validate(Model()).obstacles
    assert (obstacle.path, obstacle.kind) == ("norm", "BatchNorm")


def test_what_an_nnx_model_counts_and_draws_is_told_by_its_place() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.dense, self.seen = nnx.Linear(4, 8, rngs=rngs), nnx.Variable(jnp.zeros(()))
            self.layers = nnx.List([nnx.Dropout(0.1, rngs=rngs)])

    found = jaxdp.validate(Model())
    assert [obstacle.path for obstacle in found.obstacles] == ["seen"]
    (hint,) = found.hints
    assert hint.startswith("layers/0 ")
    assert "nnx.reseed(it, default=rng)" in str(found)


def test_layers_that_are_made_side_by_side_draw_from_keys_side_by_side() -> None:
    make = nnx.vmap(lambda rngs: nnx.Dropout(0.1, rngs=rngs), in_axes=0, out_axes=0)
    layers = nnx.split_rngs(splits=3)(make)(nnx.Rngs(0))
    (hint,) = jaxdp.validate(layers).hints
    assert 'nnx.reseed(it, default=rng, policy="match_shape")' in hint


def test_a_hint_alone_stands_against_nothing() -> None:
    jaxdp.validate(nnx.Dropout(0.1, rngs=nnx.Rngs(0))).check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GroupNorm", "InstanceNorm"])
def test_group_normalisation_takes_the_first_axis_for_a_batch(kind: str) -> None:
    """In flax, of either kind: what it makes of one example is what it makes of a batch of one only if it is given one."""
    x = jax.random.normal(jax.random.key(0), (5, 4))
    groups = {"num_groups": 2} if kind == "GroupNorm" else {}
    linen, of_nnx = getattr(nn, kind)(**groups), getattr(nnx, kind)(4, **groups, rngs=nnx.Rngs(0))
    assert "x[None]" in " ".join(jaxdp.validate(linen, x).hints)
    assert "x[None]" in " ".join(jaxdp.validate(of_nnx).hints)
    for norm in (lambda x: linen.apply(linen.init(jax.random.key(0), x), x), of_nnx):
        assert not jnp.allclose(norm(x), norm(x[None])[0], atol=1e-2)


@pytest.mark.slow
def test_equinox_models_are_looked_through_as_well() -> None:
    key, other, third = jax.random.split(jax.random.key(0), 3)
    linear = eqx.nn.Linear(4, 8, key=key)
    model = eqx.nn.Sequential(
        [linear, eqx.nn.BatchNorm(8, "batch", mode="batch"), eqx.nn.SpectralNorm(linear, "weight", key=other)]
    )
    assert [(each.path, each.kind) for each in jaxdp.validate(model).obstacles] == [
        ("layers/1", "BatchNorm"),
        ("layers/2", "SpectralNorm"),
    ]
    jaxdp.validate(eqx.nn.MLP(4, 2, 8, 1, key=third)).check()


def test_state_of_an_equinox_model_is_told_by_its_place() -> None:
    class Counting(eqx.Module):
        seen: eqx.nn.StateIndex

    (obstacle,) = jaxdp.validate(Counting(eqx.nn.StateIndex(jnp.zeros(())))).obstacles
    assert (obstacle.path, obstacle.kind) == ("seen", "StateIndex")


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="function"):
        jaxdp.validate(lambda x: x)


def loss(params: Any, example: Any) -> jax.Array:
    return jnp.sum(jnp.tanh(example @ params["a"]) @ params["b"])


@pytest.mark.slow
def test_memory_is_told_by_method_and_microbatch() -> None:
    params = {"a": jax.ShapeDtypeStruct((64, 256), jnp.float32), "b": jax.ShapeDtypeStruct((256, 4), jnp.float32)}
    batch = jax.ShapeDtypeStruct((32, 64), jnp.float32)
    found = jaxdp.step_memory(loss, params, batch, methods=("ghost", "vmap"), microbatch_sizes=(32, 4))
    ghost, ghost4, whole, part = (each.temporary_bytes for each in found)
    assert whole > 32 * 4 * 64 * 256  # a gradient for each example
    assert part < whole / 4
    assert max(ghost, ghost4) < whole / 4
    assert str(found[3]).startswith("vmap, microbatches of 4: ")
    rows = jaxdp.largest_microbatch(loss, params, batch, budget_bytes=whole / 3, method="vmap")
    assert rows in (4, 8)
    with pytest.raises(jaxdp.UsageError, match="less than"):
        jaxdp.largest_microbatch(loss, params, batch, budget_bytes=100, method="vmap")


def test_dropout_of_an_equinox_model_is_told_to_take_each_examples_key() -> None:
    model = eqx.nn.Sequential([eqx.nn.Linear(4, 3, key=jax.random.key(0)), eqx.nn.Dropout(0.5)])
    [hint] = jaxdp.validate(model).hints
    assert hint.startswith("layers/1 draws from the key")
    assert jaxdp.validate(eqx.nn.inference_mode(model)).hints == ()


def test_normalisation_by_stored_statistics_is_no_obstacle_and_they_are_told_of() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))

    of_nnx = Model()
    of_nnx.eval()
    of_equinox = eqx.nn.inference_mode(eqx.nn.Sequential([eqx.nn.BatchNorm(4, "batch", mode="batch")]))
    of_linen = Net(lambda x: nn.BatchNorm(use_running_average=True)(x))
    for found, path in (
        (jaxdp.validate(of_linen, EXAMPLE), "encoder/BatchNorm_0"),
        (jaxdp.validate(of_nnx), "norm"),
        (jaxdp.validate(of_equinox), "layers/0"),
    ):
        found.check()
        assert found.hints == (found.hints[0],)
        assert found.hints[0].startswith(f"{path} normalises by stored statistics")
    both = lambda x: (norm := nn.BatchNorm())(x, True) + norm(x, use_running_average=False)
    assert len(jaxdp.validate(Net(both), EXAMPLE).obstacles) == 1


def test_a_linen_model_without_an_input_is_asked_for_one() -> None:
    with pytest.raises(jaxdp.UsageError, match=r"one example's, as validate\(model, x\)"):
        jaxdp.validate(nn.Dense(3))


def test_what_the_loss_has_to_see_to_is_not_told_as_nothing() -> None:
    found = str(jaxdp.validate(nn.GroupNorm(2), jax.ShapeDtypeStruct((4,), "float32")))
    assert found.splitlines()[0] == "nothing in the model stands against private training, if the loss sees to this:"
