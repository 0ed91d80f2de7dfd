"""Over which devices examples are spread: read from the shardings of the user's own arrays, done by JAX's compiler.

Nothing that is accounted depends on it. Draws, keys and noise are functions of keys and indices, the same on every mesh; sums
are added up in another order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ._errors import UsageError


@dataclass(frozen=True)
class Spread:
    """A mesh of devices, and what is where on it.

    Attributes:
        mesh: with axes of any type.
        axes: over which examples are divided.
        kept: where the leaves of the values are that a step changes, in their order; it leaves them there.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    kept: tuple[PartitionSpec, ...]

    @property
    def parts(self) -> int:
        """Into how many parts examples are divided."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    def place(self, changing: Any) -> Any:
        """The values that a step changes, all of them on the mesh."""
        put = lambda leaf, where: leaf if _mesh_of(leaf) == self.mesh else jax.device_put(leaf, where)
        return jax.tree.map(put, changing, self._places(changing))

    def _places(self, changing: Any) -> Any:
        """Where each leaf is kept."""
        places = [NamedSharding(self.mesh, spec) for spec in self.kept]
        return jax.tree.unflatten(jax.tree.structure(changing), places)

    def divide(self, rows: Any) -> Any:
        """Arrays [m, ...] of examples, m a multiple of `parts`; traced, within `run`."""
        types = (AxisType.Auto,) * len(self.mesh.axis_names)
        mesh = Mesh(self.mesh.devices, self.mesh.axis_names, axis_types=types)

        def put(leaf: Any) -> Any:
            spec = PartitionSpec(self.axes, *[PartitionSpec.UNCONSTRAINED] * (leaf.ndim - 1))
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec))

        return jax.tree.map(put, rows)

    def run(self, step: Callable[..., tuple[Any, Any]], changing: Any, *args: Any) -> tuple[Any, Any]:
        """`step(changing, *args)`: the changed values where they were, and others everywhere; traced.

        What the compiler is to divide by itself has axes of type Auto within `step`, whatever the user's mesh has.
        """
        stay = self._places(changing)
        named = zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
        explicit = tuple(name for name, kind in named if kind == AxisType.Explicit)
        if not explicit:
            changed, others = step(changing, *args)
            return jax.lax.with_sharding_constraint(changed, stay), others
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        automatic: Any = jax.sharding.auto_axes(step, axes=explicit, out_sharding=(stay, everywhere))
        return automatic(changing, *args)


def spread_of(changing: Any, params: Any, data: Any) -> Spread | None:
    """How the user has laid out a step's values; None where they are on no mesh.

    Examples are divided as the rows of the data are. Where every device has all data, they are divided over the axes that no
    parameter is divided over, or over all axes if there are none.

    Args:
        changing: what a step changes, parameters among it.
        params: pytree of arrays.
        data: pytree of arrays [n, ...].

    Raises:
        UsageError: for arrays on different meshes, or on one of several processes, and data whose leaves are divided over
            different axes.
    """
    meshes = {mesh for leaf in jax.tree.leaves((changing, data)) if (mesh := _mesh_of(leaf))}
    if not meshes:
        return None
    if len(meshes) > 1:
        trees = {"data": data, "params": params, "state": changing}
        raise _several("is on", "put the state and the data on one mesh", _mesh_of, trees)
    mesh = meshes.pop()
    if mesh.is_multi_process:
        raise UsageError(
            f"the mesh {mesh} is of several processes, which could disagree on keys, draws and noise: use the devices of one "
            "process, such as jax.local_devices()"
        )
    divided = {_rows_of(leaf) for leaf in jax.tree.leaves(data) if _mesh_of(leaf)} or {()}
    if len(divided) > 1:
        raise _several("has its rows over the axes", "divide all of the data alike", _rows_of, {"data": data})
    busy = {axis for leaf in jax.tree.leaves(params) for axes in _axes_of(leaf) for axis in axes}
    free = tuple(axis for axis in mesh.axis_names if axis not in busy)
    kept = tuple(PartitionSpec(*_axes_of(leaf)) for leaf in jax.tree.leaves(changing))
    return Spread(mesh, divided.pop() or free or tuple(mesh.axis_names), kept)


def _several(verb: str, fix: str, of: Callable[[Any], Any], trees: dict[str, Any]) -> UsageError:
    """An error that names two arrays of which something isn't the same."""
    paths = jax.tree_util.tree_leaves_with_path(trees)
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    named = {of(leaf): name(path) for path, leaf in reversed(paths) if _mesh_of(leaf)}
    (one, first), (other, second), *_ = named.items()
    return UsageError(
        f"{first} {verb} {one} and {second} {other}: {fix}, with jax.device_put(array, jax.NamedSharding(mesh, spec))"
    )


def _mesh_of(leaf: Any) -> Mesh | None:
    """The mesh that an array is on."""
    sharding = getattr(leaf, "sharding", None)
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def _axes_of(leaf: Any) -> tuple[tuple[str, ...], ...]:
    """The axes of the mesh that each axis of an array is divided over, without those at the end that aren't."""
    spec = tuple(leaf.sharding.spec) if _mesh_of(leaf) else ()
    axes = [(each,) if isinstance(each, str) else tuple(each or ()) for each in spec]
    while axes and not axes[-1]:
        axes.pop()
    return tuple(axes)


def _rows_of(leaf: Any) -> tuple[str, ...]:
    """The axes of the mesh that an array's rows are divided over."""
    return next(iter(_axes_of(leaf)), ())
