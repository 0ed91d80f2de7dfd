"""What a step on several devices releases is what was accounted; and what could go wrong with noise there is found.

By hand, all of it or what is named:

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python tests/dpsgd/recorded_on_meshes.py fully own_noise_on_each_device
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from recorded import a_run, problem, violations

from jaxdp import _spread
from jaxdp._block import Block
from jaxdp.clipping import Quantile
from jaxdp.noise import Gaussian
from jaxdp.noise._gaussian import GaussianInBlocks
from jaxdp.noise.draws import standard_normal

ROWS, EVERYWHERE = jax.P("data"), jax.P()
LAYOUTS = {"everywhere": (EVERYWHERE, EVERYWHERE), "rows": (EVERYWHERE, ROWS), "fully": (ROWS, ROWS)}


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def found(layout: str, **changes: Any) -> set[str]:
    loss, params, records = problem()
    of_params, of_data = LAYOUTS[layout]
    put = lambda spec: lambda tree: jax.device_put(tree, jax.NamedSharding(mesh(), spec))
    return violations(a_run(**changes), loss, put(of_params)(params), records, steps=60, place=put(of_data))


def on_each_device(patch: pytest.MonkeyPatch, noisy: Callable[[Any, Any, Any], Any]) -> None:
    """Noise added by `noisy(key of the device, sum, scale)`, on each device by itself."""

    def update(self: Any, state: Any, sums: Any, scale: Any) -> Any:
        del self

        def own(sums: Any) -> Any:
            key = jax.random.fold_in(jax.random.fold_in(state.key, state.step), jax.lax.axis_index("data"))
            leaves, structure = jax.tree.flatten(sums)
            keys = jax.random.split(key, len(leaves))
            return structure.unflatten([noisy(k, leaf, scale) for k, leaf in zip(keys, leaves, strict=True)])

        program = jax.shard_map(own, mesh=mesh(), in_specs=EVERYWHERE, out_specs=EVERYWHERE, check_vma=False)
        return program(sums), state._replace(step=state.step + 1)

    patch.setattr(Gaussian, "update", update)


def own_noise_on_each_device(patch: pytest.MonkeyPatch) -> None:
    on_each_device(patch, lambda key, leaf, scale: leaf + scale * standard_normal(key, leaf.shape))


def noise_before_the_devices_add_up(patch: pytest.MonkeyPatch) -> None:
    def noisy(key: Any, leaf: Any, scale: Any) -> Any:
        return jax.lax.psum(leaf / mesh().size + scale * standard_normal(key, leaf.shape), "data")

    on_each_device(patch, noisy)


def in_blocks(patch: pytest.MonkeyPatch) -> None:
    """Noise on each device's own block of every leaf, however small, before the devices add up."""
    patch.setattr(_spread, "_LARGE", 1)


def one_block_for_all_devices(patch: pytest.MonkeyPatch) -> None:
    in_blocks(patch)
    own = _spread.Spread._own_block
    first = lambda self, *leaf: Block((0,) * len(leaf[0]), own(self, *leaf).shape)
    patch.setattr(_spread.Spread, "_own_block", first)


def noise_in_blocks_and_behind_them(patch: pytest.MonkeyPatch) -> None:
    in_blocks(patch)
    patch.setattr(GaussianInBlocks, "update", Gaussian.update)


FAULTS = {
    own_noise_on_each_device: "copies",
    noise_before_the_devices_add_up: "noise",
    one_block_for_all_devices: "noise",
    noise_in_blocks_and_behind_them: "noise",
}


def main(chosen: list[str]) -> None:
    for layout in LAYOUTS:
        if not chosen or layout in chosen:
            assert found(layout) == set(), layout
            assert found(layout, rule=Quantile(count_noise=3.0, learning_rate=0.05)) == set(), layout
    if not chosen or "everywhere" in chosen:
        with pytest.MonkeyPatch.context() as patch:
            in_blocks(patch)
            assert found("everywhere", rule=Quantile(count_noise=3.0, learning_rate=0.05)) == set()
    for fault, found_by in FAULTS.items():
        if not chosen or fault.__name__ in chosen:
            with pytest.MonkeyPatch.context() as patch:
                fault(patch)
                assert found_by in found("everywhere"), fault
    print("as accounted")


if __name__ == "__main__":
    jnp.zeros(())  # devices are counted before anything is planted
    main(sys.argv[1:])
