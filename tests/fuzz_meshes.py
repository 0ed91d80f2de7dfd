"""Random parameters on random meshes against one device: each value gets its noise once, and sums are the same.

A layout is drawn from a seed: parameters of any rank, length (none and one too) and float type; a mesh of one to three axes of
either type; what is divided over which of them, parameters and data; a clip rule, steps, and whether the data are read from a
source, the mesh is set by `jax.set_mesh`, and parameters are masked. Small parameters are taken for large ones, whose noise is
drawn in blocks. `check` makes the run there and on one device.

    python tests/fuzz_meshes.py --layouts 100 --seed 0      # by hand; the slow tests try six
"""

import argparse
import itertools
import math
import os
from dataclasses import dataclass
from typing import Any

if __name__ == "__main__":  # before JAX starts
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxdp
from jaxdp import _spread
from jaxdp.clipping import Flat, PerGroup, Quantile
from jaxdp.reading import Source

N = 48
DATA = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
LENGTHS = (0, 1, 2, 3, 5, 8, 16, 24, 128, 130, 256)
MOST = 2**17  # values of a parameter

# The mean that it was given last, as it is.
REMEMBERS = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda updates, state, params=None: (updates, jax.tree.map(lambda u, s: u.astype(s.dtype), updates, state)),
)


@dataclass
class Layout:
    """Where a run is made, and what run it is."""

    seed: int
    params: dict[str, Any]
    axes: dict[str, int]
    kind: AxisType
    of_params: dict[str, PartitionSpec]
    of_data: PartitionSpec
    rule: Any
    noise_multiplier: float
    gradient: float
    steps: int
    from_source: bool
    set_mesh: bool
    masked: bool

    @property
    def mesh(self) -> Mesh:
        devices = jax.devices()[: math.prod(self.axes.values())]
        kinds = (self.kind,) * len(self.axes)
        return jax.make_mesh(tuple(self.axes.values()), tuple(self.axes), axis_types=kinds, devices=devices)

    def loss(self, params: Any, x: Any) -> Any:
        total = sum(jnp.sum(leaf.astype(jnp.float32)) / (1 + leaf.size) for leaf in params.values())
        return self.gradient * total * jnp.sum(x)

    def result(self, params: Any, data: Any) -> Any:
        """The optimizer's state, which holds the last noisy mean, and the parameters."""
        run = jaxdp.DPSGD(
            num_examples=N,
            expected_batch_size=6,
            steps=4,
            clip_norm=0.7,
            noise_multiplier=self.noise_multiplier,
            rule=self.rule,
        )
        odd = {name: bool(i % 2) for i, name in enumerate(params)}
        step = run.make_step(self.loss, optax.masked(REMEMBERS, odd) if self.masked else REMEMBERS, self_check=False)
        state = step.init(params, jax.random.key(3))
        for _ in range(self.steps):
            state, _ = step(state, data)
        step.close()
        return jax.tree.map(np.asarray, (state.opt_state, state.params))


def drawn(seed: int) -> Layout:
    rng = np.random.default_rng(seed)
    one_of = lambda *choices: choices[rng.integers(len(choices))]
    sizes = [int(size) for size in rng.choice((1, 2, 3, 4, 6, 8), size=rng.integers(1, 4))]
    while math.prod(sizes) > 8:
        sizes.pop(0)
    axes = dict(zip("abc", sizes or [8], strict=False))
    params = {}
    for i in range(rng.integers(1, 6)):
        shape = tuple(int(length) for length in rng.choice(LENGTHS, size=rng.integers(0, 5)))
        dtype = one_of(jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16)
        params[f"p{i}"] = jnp.ones(shape if math.prod(shape) <= MOST else (8,), dtype)
    return Layout(
        seed=seed,
        params=params,
        axes=axes,
        kind=one_of(AxisType.Auto, AxisType.Explicit),
        of_params={name: _divided(rng, leaf.shape, axes) for name, leaf in params.items()},
        of_data=_divided(rng, (N,), axes),
        rule=one_of(Flat(), Flat(), Quantile(count_noise=3.0), PerGroup()),
        noise_multiplier=one_of(1.3, 1.3, 1.3, 0.0),
        gradient=one_of(0.0, 1.0),
        steps=one_of(1, 2),
        from_source=one_of(False, False, True),
        set_mesh=one_of(False, False, True),
        masked=one_of(False, False, True),
    )


def _divided(rng: np.random.Generator, shape: tuple[int, ...], axes: dict[str, int]) -> PartitionSpec:
    """Some axes of an array over some of a mesh, one or two for each."""
    left, spec = set(axes), []
    for length in shape:
        orders = [names for number in (1, 2) for names in itertools.permutations(sorted(left), number)]
        fitting = [names for names in orders if length and length % math.prod(axes[name] for name in names) == 0]
        names = fitting[rng.integers(len(fitting))] if fitting and rng.random() < 0.4 else ()
        left -= set(names)
        spec.append(names or None)
    return PartitionSpec(*spec)


def check(layout: Layout) -> int:
    """Hold a run to that of one device; returns how many parameters had their noise in blocks."""
    alone = layout.result(layout.params, jnp.asarray(DATA))
    mesh = layout.mesh
    params = {
        name: jax.device_put(leaf, NamedSharding(mesh, layout.of_params[name])) for name, leaf in layout.params.items()
    }
    on_mesh = jax.device_put(jnp.asarray(DATA), NamedSharding(mesh, layout.of_data))
    data = Source(DATA) if layout.from_source else on_mesh
    if layout.set_mesh:
        with jax.set_mesh(mesh):
            found = layout.result(params, data)
    else:
        found = layout.result(params, data)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(found), strict=True):
        few = 4 * float(jnp.finfo(one.dtype).eps)  # sums are added up in another order
        np.testing.assert_allclose(other.astype(np.float64), one.astype(np.float64), rtol=10 * few, atol=few)
    spread = _spread.spread_of(params, params, on_mesh)
    return len(spread.in_blocks(params)) if spread else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", type=int, default=50, help="how many to try")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; the next ones follow")
    options = parser.parse_args()
    _spread._LARGE = 8
    wrong, in_blocks = [], 0
    for seed in range(options.seed, options.seed + options.layouts):
        layout = drawn(seed)
        try:
            in_blocks += check(layout)
        except Exception as error:
            wrong.append(seed)
            print(f"{type(error).__name__}: {str(error)[:2000]}\n{layout}", flush=True)
    print(f"{options.layouts} layouts from seed {options.seed}: {len(wrong)} wrong {wrong}; in blocks: {in_blocks}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
