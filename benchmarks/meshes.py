"""Whole steps on a mesh of devices: the private one as a run compiles it, and a plain one that doesn't clip and adds no noise.

Both draw by Poisson sampling out of all examples, gather the drawn rows, divide them over the devices and update the same
optimizer; the plain one takes the gradient of the mean. Nothing is computed here, and no device needs to be there: arrays are
shapes with a layout.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from workloads import Workload

import jaxdp
from jaxdp._spread import spread_of
from jaxdp.sampling import rows_at

AXIS = "data"
_CLIP_NORM = _NOISE_MULTIPLIER = 1.0


@dataclass(frozen=True)
class Places:
    """Where the arrays of a step are.

    Attributes:
        title: as tables have it.
        divides_data: whether each device has some rows of the data; else all of them.
        divides_parameters: whether each device has a part of each parameter, along the first of its axes that the devices
            divide; else the whole.
    """

    title: str
    divides_data: bool
    divides_parameters: bool

    def of_params(self, leaf: Any, devices: int) -> PartitionSpec:
        """Of a parameter, or of what an optimizer keeps for it."""
        shape = leaf.shape if self.divides_parameters else ()
        axis = next((i for i, length in enumerate(shape) if length % devices == 0), None)
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)

    def of_data(self) -> PartitionSpec:
        """Of an array of the data."""
        return PartitionSpec(AXIS) if self.divides_data else PartitionSpec()


LAYOUTS = {
    "replicated": Places("data and parameters on every device", divides_data=False, divides_parameters=False),
    "rows": Places("rows of the data divided, parameters on every device", divides_data=True, divides_parameters=False),
    "fsdp": Places("data on every device, parameters divided (FSDP)", divides_data=False, divides_parameters=True),
}


@dataclass(frozen=True)
class Steps:
    """A model's steps on a mesh, in one layout.

    Attributes:
        workload: the model.
        mesh: of one axis, `AXIS`.
        layout: of the arrays.
        num_examples: of the data.
        batch_size: that is expected, of all devices together.
        precision: of clipped sums.
        by_rows: whether the data are in memory row after row, each in one piece; else as the device keeps them by itself. What
            a step would rather have otherwise, it copies.
    """

    workload: Workload
    mesh: Mesh
    layout: Places
    num_examples: int
    batch_size: int
    precision: str = "auto"
    by_rows: bool = True

    @property
    def rows(self) -> int:
        """How many rows are computed at once: a draw of the usual size, in equal parts."""
        return self.mesh.size * math.ceil(self._run(None).sampler(jax.random.key(0)).usual_size / self.mesh.size)

    def draw(self) -> Any:
        """What both steps begin with, the draw of their examples, by itself; traced."""
        run, rows, everywhere = self._run(None), self.rows, NamedSharding(self.mesh, PartitionSpec())

        def draw(key: Any, number: Any) -> Any:
            found = run.sampler(key).draw(number)
            return found.indices[:rows], found.size

        key = self._everywhere(jax.random.key(0))
        return jax.jit(draw, out_shardings=everywhere).trace(key, self._scalar())

    def private(self) -> Any:
        """The private step, traced."""
        step = self._run(self.rows).make_step(self.workload.loss, self._optimizer, precision=self.precision)
        state = step.init(self.workload.params, jax.random.key(0))
        carry = self._placed((state.params, state.opt_state, state.rule_state, state.noise_state))
        data = self._data()
        spread = spread_of(carry, carry[0], data)
        keys, number = self._everywhere(state.keys), self._scalar()
        return step._compiled.trace(carry, keys, number, data, (), num_steps=1, spread=spread)  # as a call does

    def plain(self) -> Any:
        """The plain step, traced."""
        optimizer, rows = self._optimizer, self.rows
        run = self._run(rows)
        carry = self._placed((self.workload.params, optimizer.init(self.workload.params)))
        stay = jax.tree.map(lambda leaf: leaf.sharding, carry)
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        kept = jax.tree.map(lambda sharding: sharding.spec, stay[0])

        def own_gradient(params: Any, batch: Any, mask: Any) -> Any:
            """Of a device's own rows, added up; written out, since what the compiler makes of divided parameters may be worse."""

            def loss(params: Any) -> Any:
                losses = jax.vmap(self.workload.loss, (None, 0))(params, batch)
                return jnp.sum(jnp.where(mask, losses, 0)) / run.expected_batch_size

            value, grads = jax.value_and_grad(loss)(jax.tree.map(_gathered, params, kept))
            return jax.lax.psum(value, AXIS), jax.tree.map(_added_up, grads, kept)

        by_rows = PartitionSpec(AXIS)
        gradient = jax.shard_map(
            own_gradient,
            mesh=self.mesh,
            in_specs=(kept, by_rows, by_rows),
            out_specs=(PartitionSpec(), kept),
            check_vma=False,
        )

        def divided(leaf: Any) -> Any:
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, by_rows))

        def step(carry: Any, key: Any, number: Any, data: Any) -> Any:
            params, opt_state = carry
            draw = run.sampler(key).draw(number)
            mask = divided(jnp.arange(rows) < draw.size)
            drawn = jax.lax.with_sharding_constraint(draw.indices[:rows], everywhere)
            batch = jax.tree.map(lambda leaf: divided(rows_at(leaf, drawn)), data)
            value, grads = gradient(params, batch, mask)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), value

        key = self._everywhere(jax.random.key(0))
        compiled = jax.jit(step, donate_argnums=0, out_shardings=(stay, everywhere))
        return compiled.trace(carry, key, self._scalar(), self._data())

    def _run(self, microbatch_size: int | None) -> Any:
        return jaxdp.DPSGD(
            num_examples=self.num_examples,
            expected_batch_size=self.batch_size,
            steps=100,
            clip_norm=_CLIP_NORM,
            noise_multiplier=_NOISE_MULTIPLIER,
            microbatch_size=microbatch_size,
        )

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(0.1, momentum=0.9)

    def _placed(self, changing: Any) -> Any:
        """What a step changes."""
        return self._shapes(changing, lambda leaf: self.layout.of_params(leaf, self.mesh.size))

    def _data(self) -> Any:
        """All examples, shaped like the workload's batch."""

        def shape(leaf: Any) -> Any:
            where = NamedSharding(self.mesh, self.layout.of_data())
            kept = Format(Layout(tuple(range(leaf.ndim))), where) if self.by_rows else where
            return jax.ShapeDtypeStruct((self.num_examples, *leaf.shape[1:]), leaf.dtype, sharding=kept)

        return jax.tree.map(shape, self.workload.batch)

    def _everywhere(self, tree: Any) -> Any:
        return self._shapes(tree, lambda leaf: PartitionSpec())

    def _scalar(self) -> Any:
        return self._everywhere(jnp.int32(0))

    def _shapes(self, tree: Any, spec: Callable[[Any], PartitionSpec]) -> Any:
        sharded = lambda leaf: NamedSharding(self.mesh, spec(leaf))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharded(leaf)), tree)


def _gathered(leaf: Any, spec: PartitionSpec) -> Any:
    """A parameter of which a device has its part."""
    return jax.lax.all_gather(leaf, AXIS, axis=spec.index(AXIS), tiled=True) if AXIS in spec else leaf


def _added_up(leaf: Any, spec: PartitionSpec) -> Any:
    """A gradient of all devices, of which each gets the part that it has of the parameter."""
    if AXIS not in spec:
        return jax.lax.psum(leaf, AXIS)
    return jax.lax.psum_scatter(leaf, AXIS, scatter_dimension=spec.index(AXIS), tiled=True)
