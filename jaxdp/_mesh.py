"""Which mesh of devices an array is on, which one is set, and what JAX says where they are not the same."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ._errors import UsageError

_OF_TWO_MESHES = ("Mesh for all inputs should be equal", "should match the aval mesh")  # what JAX says
_OF_ITS_OWN_MESH = (  # of a loss that runs jax.shard_map
    "should match the mesh passed to shard_map",
    "must refer to an axis marked as manual",
    "disagree with the shardings of arguments",
)


def mesh_of(leaf: Any) -> Mesh | None:
    """The mesh that an array is on."""
    sharding = getattr(leaf, "sharding", None)
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def automatic(mesh: Mesh) -> Mesh:
    """The same devices, with axes that the compiler divides over by itself."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def explicit_axes(mesh: Any) -> tuple[str, ...]:
    """The names of a mesh's axes of type Explicit, over which the compiler doesn't divide by itself."""
    return tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit)


def on_no_explicit_mesh(leaf: Any) -> Any:
    """An array; on the host, where it is on a mesh with axes of type Explicit, over which programs that know of none can't go."""
    mesh = mesh_of(leaf)
    return leaf if mesh is None or not explicit_axes(mesh) else np.asarray(leaf)


def branches_may_differ() -> bool:
    """Whether devices that compute together may take different branches: within `jax.shard_map` over some axes of a mesh whose
    other axes the compiler divides over. What one branch exchanges, the devices in another one never send."""
    types = types_of_long_axes()
    return AxisType.Manual in types and len(types) > 1


def types_of_long_axes() -> set[AxisType]:
    """Of the mesh within which a program is traced: the types of its axes of more than one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return {kind for kind, size in zip(mesh.axis_types, mesh.axis_sizes, strict=True) if size > 1}


def computing_on(mesh: Mesh) -> AbstractContextManager[Any]:
    """Where arrays on a mesh are computed with: JAX refuses them where `jax.set_mesh` has set axes of another type."""
    return nullcontext() if jax.sharding.get_abstract_mesh().empty else jax.set_mesh(mesh)


def by_the_compiler(program: Callable[..., Any], args: tuple[Any, ...], like: Any) -> Any:
    """`program(*args)`, whose work the compiler divides over devices by itself where the user's mesh has axes of type Explicit.

    Args:
        program: from arguments to a tree.
        args: pytrees of arrays; those that are on a mesh are on one.
        like: the same tree, with an array for each that is to be where that is, and None for what every device is to have.
    """
    mesh: Any = next((mesh for leaf in jax.tree.leaves(args) if (mesh := _explicit_mesh_of(leaf))), None)
    if mesh is None:
        return program(*args)
    where = lambda leaf: NamedSharding(
        mesh, jax.typeof(leaf).sharding.spec if _explicit_mesh_of(leaf) else PartitionSpec()
    )
    places = jax.tree.map(where, like, is_leaf=lambda leaf: leaf is None)
    divided: Any = jax.sharding.auto_axes(program, axes=explicit_axes(mesh), out_sharding=places)
    with explaining(mesh):
        return jax.jit(divided)(*args)


def _explicit_mesh_of(leaf: Any) -> Any:
    """The mesh with axes of type Explicit that a value is on, if it is on one."""
    mesh = None if leaf is None else jax.typeof(leaf).sharding.mesh
    return mesh if mesh is not None and explicit_axes(mesh) else None


@contextmanager
def explaining(mesh: Any) -> Iterator[None]:
    """Where a loss is traced: what JAX says of arrays, or of a mesh, that it has of its own, in words of what to change.

    Raises:
        UsageError: in the place of that.
    """
    try:
        yield
    except ValueError as error:
        if any(words in str(error) for words in _OF_ITS_OWN_MESH):
            raise UsageError(
                "the loss computes on a mesh of its own (jax.shard_map, or a constraint), and the step elsewhere: lay parameters "
                "and data out on that mesh, leave mesh= out of jax.shard_map, and make the state and the steps within "
                "jax.set_mesh(mesh)"
            ) from error
        if mesh is None or not any(words in str(error) for words in _OF_TWO_MESHES):
            raise
        raise UsageError(
            f"the loss, or the optimizer, computes with an array of its own that is on {mesh}, whose axes JAX doesn't divide by "
            "itself: hand it over as an argument, as in step(state, data, table) for loss(params, example, table), or keep a "
            "copy without a mesh, jnp.asarray(np.asarray(table))"
        ) from error


def check_mesh_that_is_set(arrays: Any) -> None:
    """Refuse arrays on another mesh than the one that `jax.set_mesh` has set, with which JAX would compute nothing.

    Raises:
        UsageError: for them.
    """
    context = jax.sharding.get_abstract_mesh()
    if context.empty:
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        mesh = mesh_of(leaf)
        if mesh and mesh.abstract_mesh != context:
            raise UsageError(
                f"{jax.tree_util.keystr(path, simple=True, separator='/')} is on {mesh}, and jax.set_mesh has set another one, "
                f"{context}: leave jax.set_mesh out, or set the mesh that the arrays are on"
            )
