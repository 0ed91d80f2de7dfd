"""Runs on meshes of eight devices, against one device: a process of its own, since devices are counted where JAX starts.

By hand, all layouts and what is tried beside them, or those that are named (`some`, `others` and `beside` are the three parts
of all of that), and with `--of ADDRESS NUMBER OWN` first as one of several processes:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/dpsgd/on_meshes.py rows
"""

import dataclasses
import math
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxdp
from jaxdp._spread import Spread, spread_of
from jaxdp.clipping import PerGroup, Quantile
from jaxdp.reading import Source

OF_SEVERAL = __name__ == "__main__" and sys.argv[1:2] == ["--of"]
if OF_SEVERAL:  # before anything is computed
    jax.distributed.initialize(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

N = 512
RUN = jaxdp.DPSGD(num_examples=N, expected_batch_size=60, steps=60, clip_norm=0.1, noise_multiplier=1.0)
KEYS = jax.random.split(jax.random.key(0), 4)
DATA = (jax.random.normal(KEYS[0], (N, 16)), jax.random.randint(KEYS[1], (N,), 0, 10))
PARAMS = {
    "in": jax.random.normal(KEYS[2], (16, 128)),
    "bias": jnp.zeros(128),
    "out": jax.random.normal(KEYS[3], (128, 10)),
}
BRIEFLY = sys.argv[1:] == ["fully"]  # as the fast test has it
STEPS = 5 if BRIEFLY else 50
FEW = 5  # where the noise is that of another device to the bit or isn't


# The mean that it was given last, as it is.
REMEMBERS = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params), lambda updates, state, params=None: (updates, updates)
)


def loss(params: Any, example: Any) -> Any:
    x, y = example
    hidden = jnp.tanh(x @ params["in"] + params["bias"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["out"], y)


def constant(params: Any, example: Any) -> Any:
    """No gradient: what parameters become is noise alone."""
    return 0.0 * loss(params, example)


def trained(loss: Any, params: Any, data: Any, steps: int = STEPS, **changes: Any) -> tuple[Any, Any, Any]:
    optimizer, traced = REMEMBERS if loss is constant else optax.adam(0.01), []
    update = lambda *args: traced.append(None) or optimizer.update(*args)
    run = dataclasses.replace(RUN, **changes)
    step = run.make_step(loss, optimizer._replace(update=update), self_check=loss is not constant)
    state, drawn, times = step.init(params, jax.random.key(7)), [], []
    for _ in range(steps):
        state, metrics = step(state, data)
        drawn.append(int(metrics.examples))
        times.append(len(traced))
    assert times[0] == times[-1], "compiled once"
    step.close()
    return state, drawn, step


def placed(mesh: Mesh, tree: Any, spec: Any) -> Any:
    """Arrays on a mesh, of which each process puts its own part there."""

    def put(leaf: Any) -> Any:
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, NamedSharding(mesh, spec(leaf)), lambda index: host[index])

    return jax.tree.map(put, tree)


def whole(leaf: Any) -> np.ndarray:
    """An array's values, wherever it is."""
    if leaf.is_fully_addressable:
        return np.asarray(leaf)
    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(whole(a), whole(b))


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(whole(a), whole(b), rtol=1e-4, atol=1e-6)


def everywhere(leaf: Any) -> PartitionSpec:
    del leaf
    return PartitionSpec()


def rows(leaf: Any) -> PartitionSpec:
    del leaf
    return PartitionSpec("data")


def fully(leaf: Any) -> PartitionSpec:
    return PartitionSpec("data") if leaf.ndim > 1 else PartitionSpec()


def tensors(leaf: Any) -> PartitionSpec:
    return PartitionSpec(None, "model") if leaf.shape == (16, 128) else PartitionSpec()


def classes(leaf: Any) -> PartitionSpec:
    return PartitionSpec(None, "model") if leaf.shape == (128, 10) else PartitionSpec()


LAYOUTS = {
    "rows": ((8,), ("data",), everywhere, rows),
    "everywhere": ((8,), ("data",), everywhere, everywhere),
    "one": ((1,), ("data",), everywhere, rows),
    "two": ((2,), ("data",), everywhere, rows),
    "fully": ((8,), ("data",), fully, rows),
    "tensors": ((4, 2), ("data", "model"), tensors, rows),
    "classes": ((4, 2), ("data", "model"), classes, rows),
    "tensors, data everywhere": ((4, 2), ("data", "model"), tensors, everywhere),
    "tensors, data on one": ((1, 2), ("data", "model"), tensors, rows),
}


PARTS = {"some": list(LAYOUTS)[::2], "others": list(LAYOUTS)[1::2]}


def main(named: list[str]) -> None:
    chosen = [layout for name in named for layout in PARTS.get(name, [name])]
    assert {*LAYOUTS, "beside"}.issuperset(chosen), f"{named}: there are {', '.join((*LAYOUTS, *PARTS, 'beside'))}"
    alone, drawn, _ = trained(loss, PARAMS, DATA)
    noise, _, _ = trained(constant, PARAMS, DATA, FEW)
    thorough = not (BRIEFLY or OF_SEVERAL)
    for i, (layout, (shape, names, of_params, of_data)) in enumerate(LAYOUTS.items()):
        if chosen and layout not in chosen:
            continue
        both = thorough and layout in ("rows", "fully", "tensors")
        for kind in (AxisType.Explicit, AxisType.Auto)[slice(None) if both else slice(i % 2, i % 2 + 1)]:
            devices = jax.devices()[: int(np.prod(shape))]
            mesh = jax.make_mesh(shape, names, axis_types=(kind,) * len(shape), devices=devices)
            params, data = placed(mesh, PARAMS, of_params), placed(mesh, DATA, of_data)
            state, found, step = trained(loss, params, data)
            assert found == drawn, "the same draws"
            jax.tree.map(close, state.params, alone.params)
            for name, leaf in state.params.items():
                assert leaf.sharding.is_equivalent_to(params[name].sharding, leaf.ndim), f"{name} stays where it was"
            noisy, _, _ = trained(constant, params, data, FEW)
            jax.tree.map(same, noisy.opt_state, noise.opt_state)
            if thorough:
                check_work(step, state, data)
            if both or OF_SEVERAL:
                read, found, _ = trained(loss, params, Source(jax.tree.map(np.asarray, DATA)))
                assert found == drawn, "the same draws"
                # What is divided over a model's axis XLA adds up as it likes.
                alike = close if "model" in names else same
                jax.tree.map(alike, read.params, state.params)
    if OF_SEVERAL:
        refuse_other_processes()
        if "fully" in chosen:
            in_blocks()
            in_many_microbatches()
    beside = thorough and (not chosen or "beside" in chosen)
    if beside:
        goes_on_elsewhere(alone)
        in_blocks()
        refuse_a_state_again()
        under_other_rules()
        in_many_microbatches()
        same_rows()
        divided_both_ways()
        refuse_other_meshes()
        where_a_mesh_is_set(alone)
    print("the same on every mesh")


def goes_on_elsewhere(alone: Any) -> None:
    """Begun on eight devices, gone on with on two, and on one."""
    eight, two, one = (jax.make_mesh((n,), ("data",), devices=jax.devices()[:n]) for n in (8, 2, 1))
    state, _, _ = trained(loss, placed(eight, PARAMS, fully), placed(eight, DATA, rows), steps=STEPS - 2)
    step = RUN.make_step(loss, optax.adam(0.01), self_check=False)
    moved = lambda state, where: state._replace(
        **{name: jax.device_put(getattr(state, name), where) for name in ("params", "opt_state", "noise_state")}
    )
    state, _ = step(moved(state, NamedSharding(two, PartitionSpec())), placed(two, DATA, everywhere))
    state, _ = step(moved(state, NamedSharding(one, PartitionSpec())), placed(one, DATA, everywhere))
    jax.tree.map(close, state.params, alone.params)


def check_work(step: Any, state: Any, data: Any) -> None:
    """Every device computes its part of a microbatch: no product has all of its rows."""
    carry = (state.params, state.opt_state, state.rule_state, state.noise_state)
    spread = spread_of(carry, state.params, data)
    assert spread is not None
    keys, first = spread.everywhere((state.keys, jnp.int32(0)))
    lowered = step._compiled.lower(carry, keys, first, data, (), num_steps=1, spread=spread)
    text = lowered.compile().as_text()
    rows = {int(n) for n in re.findall(r"= f32\[(\d+),(?:128|64)\]\S* (?:dot|fusion)\(", text)}
    most = RUN.sampler(jax.random.key(0)).usual_size / spread.parts + 1
    assert any(n <= most for n in rows), (rows, most)
    if all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.params)):
        assert not any(most < n < N and n not in (16, 128) for n in rows), (rows, most)


def in_blocks() -> None:
    """Noise of large parameters that devices have alike, of which each draws a block, is the noise that one device draws."""
    shapes = {
        "w": (1024, 512),
        "heads": (256, 4, 64),
        "out": (2, 64, 1024),
        "long": (2**17,),
        "odd": (257, 257),
        "b": (3,),
    }
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}

    def nothing(params: Any, example: Any) -> Any:
        return 0.0 * sum(jnp.ravel(leaf)[0] for leaf in params.values()) * jnp.sum(example[0])

    def noise(params: Any, data: Any) -> Any:
        step = RUN.make_step(nothing, REMEMBERS, self_check=False)
        return step(step.init(params, jax.random.key(7)), data)[0].opt_state

    over_model = lambda leaf: (
        PartitionSpec(None, "model") if leaf.ndim > 1 and leaf.shape[1] % 2 == 0 else everywhere(leaf)
    )
    alone = noise(params, DATA)
    over_data = lambda leaf: PartitionSpec("data") if leaf.shape[0] % 8 == 0 else PartitionSpec()
    over_both = lambda leaf: PartitionSpec(("data", "other"))
    layouts = (
        ((8,), ("data",), everywhere, everywhere, "heads long out w"),
        ((4, 2), ("data", "other"), everywhere, everywhere, "heads long out w"),
        ((4, 2), ("data", "other"), over_data, everywhere, "heads out w"),
        ((4, 2), ("data", "other"), over_data, over_both, "out"),
        ((3, 2), ("data", "other"), everywhere, everywhere, ""),
        ((4, 2), ("data", "model"), over_model, rows, "heads long out w"),
    )
    for shape, names, of_params, of_data, expected in layouts[:: 1 if jax.process_count() == 1 else 3]:
        mesh = jax.make_mesh(shape, names, devices=jax.devices()[: math.prod(shape)])
        where, data = placed(mesh, params, of_params), placed(mesh, DATA, of_data)
        spread = spread_of(where, where, data)
        assert spread is not None
        found = spread.in_blocks(params)
        assert [name for i, name in enumerate(sorted(params)) if i in found] == expected.split(), (shape, of_params)
        jax.tree.map(same, noise(where, data), alone)
        if shape == (8,):
            read = noise(placed(mesh, params, of_params), Source(jax.tree.map(np.asarray, DATA)))
            jax.tree.map(same, read, alone)
        if jax.process_count() == 1:
            check_blocks(spread, params)


def check_blocks(spread: Spread, params: Any) -> None:
    """The devices' blocks of a parameter are the whole, each value in one of them."""
    leaves, structure = jax.tree.flatten(params)
    alike = [
        math.prod(spread.mesh.shape[name] for name in spread._remaining(spec)) for spec in spread.kept[: len(leaves)]
    ]
    addends = structure.unflatten(jnp.zeros((n, *leaf.shape)) for n, leaf in zip(alike, leaves, strict=True))

    def ones(sums: Any, blocks: Any) -> Any:
        assert set(blocks) == spread.in_blocks(params)
        changed = [
            blocks[i].put(leaf, jnp.ones(blocks[i].shape)) if i in blocks else leaf + 1 / alike[i]
            for i, leaf in enumerate(jax.tree.leaves(sums))
        ]
        return structure.unflatten(changed)

    sums, _ = jax.jit(lambda addends: spread.add_up((addends, ()), ones))(addends)
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(whole(leaf), 1), sums)


def under_other_rules() -> None:
    """What a rule keeps from step to step, and the sums of several groups, are those of one device."""
    mesh = jax.make_mesh((8,), ("data",))
    for rule in (Quantile(count_noise=3.0, learning_rate=0.3), PerGroup()):
        alone, drawn, _ = trained(loss, PARAMS, DATA, rule=rule)
        for of_params, of_data in ((everywhere, rows), (fully, rows), (fully, everywhere)):
            params, data = placed(mesh, PARAMS, of_params), placed(mesh, DATA, of_data)
            state, found, _ = trained(loss, params, data, rule=rule)
            assert found == drawn, "the same draws"
            jax.tree.map(close, state.params, alone.params)
            for a, b in zip(jax.tree.leaves(state.rule_state), jax.tree.leaves(alone.rule_state), strict=True):
                if not jnp.issubdtype(b.dtype, jax.dtypes.extended):
                    close(a, b)


def in_many_microbatches() -> None:
    """What rounding takes away from the sums of many microbatches goes with them, out of arrays and from a source."""
    mesh, many = jax.make_mesh((8,), ("data",)), {"steps": FEW, "microbatch_size": 8}
    alone, drawn, _ = trained(loss, PARAMS, DATA, **many)
    for of_params in (everywhere, fully):
        params = placed(mesh, PARAMS, of_params)
        state, found, _ = trained(loss, params, placed(mesh, DATA, rows), **many)
        assert found == drawn, "the same draws"
        jax.tree.map(close, state.params, alone.params)
        read, _, _ = trained(loss, params, Source(jax.tree.map(np.asarray, DATA)), **many)
        jax.tree.map(same, read.params, state.params)


def same_rows() -> None:
    """A row comes to the device that computes with it as it was: keys, signs of zeros, and what is next to zero."""
    signs = np.where(np.arange(N) % 2, -0.0, 0.0).astype(np.float32)
    data = (jax.random.split(KEYS[0], N), jnp.asarray(signs), jnp.asarray(signs, jnp.bfloat16), jnp.full(N, 1e-40))
    params = {"w": jnp.ones(4)}

    def of_bits(params: Any, example: Any) -> Any:
        key, *floats = example
        bits = [jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}") % 1021 for x in floats]
        return jnp.sum(params["w"] * jnp.stack([jax.random.uniform(key), *[jnp.float32(each) for each in bits]]))

    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    on_mesh = jax.device_put(data, NamedSharding(mesh, PartitionSpec("data")))
    totals = []
    for rows in (data, on_mesh):
        step = dataclasses.replace(RUN, clip_norm=1e6, noise_multiplier=0.0).make_step(
            of_bits, REMEMBERS, self_check=False
        )
        state, _ = step(step.init(params, jax.random.key(7)), rows)
        totals.append(np.asarray(state.opt_state["w"]))
    np.testing.assert_allclose(totals[1], totals[0], rtol=1e-5)


def refuse_a_state_again() -> None:
    """A state that wasn't on the mesh before its step is gone behind it, too."""
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[2:4])
    data = placed(mesh, DATA, rows)
    step = RUN.make_step(loss, optax.sgd(0.1), self_check=False)
    state = step.init(PARAMS, KEYS[0])
    step(state, data)
    with pytest.raises(jaxdp.UsageError, match="the arrays of the state are gone"):
        step(state, data)


def divided_both_ways() -> None:
    """A table over the model's axis and then the data's, beside weights over the model's: one that XLA doesn't divide anew."""
    mesh = jax.make_mesh((3, 2), ("data", "model"), devices=jax.devices()[:6])
    params = {"table": jnp.ones((300, 2)), "in": jnp.ones((2, 2)), "over": jnp.ones((2, 2)) / 2}
    data = (np.arange(3 * 510).reshape(510, 3) % 300, np.ones((510, 3, 2), np.float32))

    def recurrent(params: Any, example: Any) -> Any:
        def one(carry: Any, row: Any) -> Any:
            state, weight = carry
            state = jnp.tanh(row @ params["in"] + state @ weight)
            return (state, weight), state

        ids, rows = example
        return jnp.sum(jax.lax.scan(one, (jnp.zeros(2), params["over"]), rows)[1] + params["table"][ids])

    specs = {"table": PartitionSpec(("model", "data")), "in": PartitionSpec(), "over": PartitionSpec(None, "model")}
    divided = {name: placed(mesh, leaf, lambda _, name=name: specs[name]) for name, leaf in params.items()}
    run = dataclasses.replace(RUN, num_examples=510, noise_multiplier=0.0)
    afters = []
    for where, examples in ((params, data), (divided, placed(mesh, data, rows))):
        step = run.make_step(recurrent, optax.sgd(0.1), self_check=False)
        afters.append(step(step.init(where, KEYS[0]), examples)[0].params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(whole(a), b, rtol=1e-4), afters[1], afters[0])


def refuse_other_meshes() -> None:
    one = jax.make_mesh((8,), ("data",))
    other = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    for params, data, message in (
        (placed(one, PARAMS, everywhere), placed(other, DATA, rows), "put the state and the data on one mesh"),
        (placed(one, PARAMS, everywhere), jax.device_put(DATA, jax.devices()[1]), "put all data there"),
        (PARAMS, (placed(one, DATA[0], rows), placed(one, DATA[1], everywhere)), "divide all of the data alike"),
    ):
        with pytest.raises(jaxdp.UsageError, match=message):
            trained(loss, params, data)


def where_a_mesh_is_set(alone: Any) -> None:
    """Within `jax.set_mesh` a run is the same run; another mesh is refused, and what a loss has of its own on an Explicit one."""
    devices = jax.devices()[:4]
    kinds = (AxisType.Explicit, AxisType.Auto)
    one, other = (jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=devices) for kind in kinds)
    for mesh, another in ((one, other), (other, one)):
        params, data = placed(mesh, PARAMS, fully), placed(mesh, DATA, rows)
        step = RUN.make_step(loss, optax.adam(0.01))
        with jax.set_mesh(mesh):
            state = step.init(params, jax.random.key(7))
            for _ in range(STEPS):
                state, _ = step(state, data)
        jax.tree.map(close, state.params, alone.params)
        with jax.set_mesh(another):
            with pytest.raises(jaxdp.UsageError, match=r"params/bias is on .* and jax.set_mesh has set another"):
                step.init(params, jax.random.key(7))
            with pytest.raises(jaxdp.UsageError, match=r"data/0 is on .* and jax.set_mesh has set another"):
                step(state, data)
    params, data = placed(one, PARAMS, everywhere), placed(one, DATA, rows)
    table = placed(one, jnp.ones(128), everywhere)
    shared = lambda params, example, table: loss(params | {"bias": params["bias"] * table}, example)
    for self_check in (True, False):
        step = RUN.make_step(lambda *given: shared(*given, table), optax.adam(0.01), self_check=self_check)
        with pytest.raises(jaxdp.UsageError, match="hand it over as an argument"):
            step(step.init(params, jax.random.key(7)), data)
        step = RUN.make_step(shared, optax.adam(0.01), self_check=self_check)
        state = step.init(params, jax.random.key(7))
        for _ in range(STEPS):
            state, _ = step(state, data, table)
        jax.tree.map(close, state.params, alone.params)


def refuse_other_processes() -> None:
    """Processes that would not make the same steps find out before the first, each of them, and what it is."""
    mesh = jax.make_mesh((8,), ("data",))
    own = jax.process_index()

    def refused(what: str, *, key: int = 7, clip_norm: float = 0.1, scale: float = 1.0, moved: float = 0.0) -> None:
        run = dataclasses.replace(RUN, clip_norm=clip_norm)
        step = run.make_step(lambda params, x: scale * loss(params, x), optax.sgd(0.1), self_check=False)
        data = placed(mesh, jax.tree.map(lambda leaf: leaf + np.asarray(moved, leaf.dtype), DATA), everywhere)
        state = step.init(placed(mesh, PARAMS, everywhere), jax.random.key(key))
        with pytest.raises(jaxdp.UsageError, match=f"disagree on.* {what}.*process 1 against process 0"):
            step(state, data)

    refused("state.*keys", key=own)
    refused("the run's description", clip_norm=0.1 + own)
    refused("the program of a step", scale=1.0 + own)
    refused("data", moved=float(own))
    step = RUN.make_step(lambda params, x, by: by * loss(params, x), optax.sgd(0.1), self_check=False)
    state, data = step.init(placed(mesh, PARAMS, everywhere), jax.random.key(7)), placed(mesh, DATA, everywhere)
    for by in (1.0, 2.0):
        state, _ = step(state, data, jnp.float32(by))
    with pytest.raises(jaxdp.UsageError, match=r"disagree on shared.*process 1 against process 0"):
        step(state, data, jnp.float32(own))
    with pytest.raises(jaxdp.UsageError, match="same_in_all_processes=True"):
        jaxdp.key_from_entropy()
    words = [
        np.asarray(jax.random.key_data(jaxdp.key_from_entropy(same_in_all_processes=same))) for same in (True, False)
    ]
    one_and_other = multihost_utils.process_allgather(np.stack(words))
    assert [len(np.unique(each, axis=0)) for each in one_and_other.swapaxes(0, 1)] == [1, 2]
    step = RUN.make_step(loss, optax.sgd(0.1), self_check=False)
    mine = jax.make_mesh((4,), ("data",), devices=jax.local_devices())
    step(step.init(placed(mine, PARAMS, everywhere), jax.random.key(own)), placed(mine, DATA, rows))  # each its own run


if __name__ == "__main__":
    main(sys.argv[5:] if OF_SEVERAL else sys.argv[1:])
