"""Over which devices examples are spread: read from the shardings of the user's own arrays.

Each device adds up the clipped gradients of its own part of every microbatch, as one device alone does; what the devices have is
added up once a step. Parameters that are divided over the same devices are gathered for a microbatch, and its sum scattered to
where they are kept. All else that a step does is left to JAX's compiler.

Nothing that is accounted depends on it. Draws, keys and noise are functions of keys and indices, the same on every mesh; sums
are added up in another order.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import _checks
from ._alike import Alike
from ._block import Block, cuts
from ._errors import UsageError
from ._mesh import automatic, explicit_axes, mesh_of

_LARGE = 2**16  # values: what is made of fewer costs less than a block of them would


@dataclass(frozen=True)
class Spread:
    """A mesh of devices, and what is where on it.

    Attributes:
        mesh: with axes of any type.
        axes: over which examples are divided, of several devices each; none where each device has all.
        kept: where the leaves of the values are that a step changes, parameters first; it leaves them there.
        rows_divided: whether each device has its part of the data's rows, and not all of them.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    kept: tuple[PartitionSpec, ...]
    rows_divided: bool

    @property
    def parts(self) -> int:
        """Into how many parts examples are divided."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    def place(self, changing: Any) -> Any:
        """The values that a step changes, all of them on the mesh."""
        return jax.tree.map(self._put, changing, self._places(changing))

    def everywhere(self, values: Any) -> Any:
        """Values that every device is to have; what isn't on the mesh yet is put there."""
        return jax.tree.map(partial(self._put, where=self._everywhere), values)

    def places_here(self, rows: int) -> np.ndarray:
        """Which of so many rows, divided over `axes`, this process has a device for: ascending."""
        where = NamedSharding(self.mesh, PartitionSpec(self.axes))
        slices = where.addressable_devices_indices_map((rows,)).values()
        return np.unique(np.concatenate([np.arange(rows)[index] for index in slices]))

    def rows_from_here(self, own: np.ndarray, rows: int, places: np.ndarray) -> Any:
        """An array [k, rows, ...], its rows divided over `axes`, of which this process has those at `places_here`."""

        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[1].indices(rows)
            first = int(np.searchsorted(places, start))
            return own[:, first : first + stop - start]

        where = NamedSharding(self.mesh, PartitionSpec(None, self.axes))
        return jax.make_array_from_callback((own.shape[0], rows, *own.shape[2:]), where, part)

    def here(self, values: Any) -> Any:
        """Values as this process alone has them, whole, on one of its devices; all processes must ask."""
        whole = jax.jit(lambda tree: tree, out_shardings=self._everywhere)
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), whole(self.everywhere(values)))

    def automatic(self, values: Any) -> Any:
        """The same values where they are, on axes that the compiler divides over by itself, for what isn't run by `run`."""

        def put(leaf: Any) -> Any:
            if mesh_of(leaf) != self.mesh:
                return leaf
            return jax.device_put(leaf, NamedSharding(automatic(self.mesh), leaf.sharding.spec))

        return jax.tree.map(put, values)

    @property
    def processes(self) -> int:
        """How many processes the devices are of."""
        return len({device.process_index for device in self.mesh.devices.flat})

    def _put(self, leaf: Any, where: NamedSharding) -> Any:
        """A leaf on the mesh; where it is of several processes, each puts what it has on its own devices."""
        if mesh_of(leaf) == self.mesh:
            return leaf
        if not self.mesh.is_multi_process:
            return jax.device_put(leaf, where)
        if _checks.is_key(leaf):
            return by_words(partial(self._put, where=where), leaf)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, where, lambda index: host[index])

    def _places(self, changing: Any) -> Any:
        """Where each leaf is kept."""
        places = [NamedSharding(self.mesh, spec) for spec in self.kept]
        return jax.tree.unflatten(jax.tree.structure(changing), places)

    def on_each(
        self,
        part: Callable[..., Any],
        addends: Any,
        params: Any,
        data: Any,
        *args: Any,
        several: Callable[[Any], Any],
        rows_axis: int = 0,
    ) -> Any:
        """`part(addends, params, data, *args)` on every device, of its own examples; traced, within `run`.

        Args:
            part: gives a pair: sums as `scattered` gives them, and a pytree of other sums. It has of parameters and data what
                lies on its device; what they are divided over beside `axes` is left to the compiler, as for one device.
            addends: what this gave before, of which each device has its own; None for none.
            params: pytree of arrays, kept as the first of `kept`.
            data: pytree of arrays, whose rows are along `rows_axis`.
            *args: pytrees of arrays, the same on every device.
            several: from the structure of a pair to that of what `part` gives, which may be several of them.
            rows_axis: of the data.

        Returns:
            What each device has, for `add_up`: the pair, each leaf with a leading axis of devices to be added up over.
        """
        rows = PartitionSpec(*[None] * rows_axis, self.axes) if self.rows_divided else PartitionSpec()
        kept = self._divided(params)
        stacked = several(self._stacked(kept))

        def each(addends: Any, *given: Any) -> Any:
            own = jax.tree.map(_first, addends)
            return jax.tree.map(lambda leaf: leaf[None], part(own, *given))

        in_specs = (None if addends is None else stacked, kept, rows, *[PartitionSpec()] * len(args))
        return self._shard_map(each, in_specs, stacked)(addends, self._by_axes_first(params), data, *args)

    def add_up(self, addends: Any, change: Callable[..., Any] = lambda sums, blocks: sums, *args: Any) -> Any:
        """What `on_each` gave, added up over the devices: others on every device, of a sum what a device has of the parameter.

        Args:
            addends: as `on_each` gave them.
            change: `change(sums, blocks, *args)` of a device's own sums gives what is added up instead. For the leaves whose
                numbers are `in_blocks(params)`, each device has a block of its own in `blocks`, which together are the whole.
            *args: pytrees of arrays, the same on every device.
        """
        like = jax.eval_shape(partial(jax.tree.map, _first), addends[0])
        kept, divided = self._divided(like), self.in_blocks(like)

        def total(addends: Any, *args: Any) -> Any:
            sums, others = jax.tree.map(_first, addends)
            leaves = jax.tree.leaves(sums)
            blocks = {i: self._own_block(leaves[i].shape, self.kept[i]) for i in divided}
            leaves, structure = jax.tree.flatten(change(sums, blocks, *args))
            specs = jax.tree.leaves(kept, is_leaf=_is_spec)
            everywhere = [i for i, spec in enumerate(specs) if spec == PartitionSpec()]
            added = dict(zip(everywhere, self._added_everywhere([leaves[i] for i in everywhere]), strict=True))
            up = lambda i: self._psum(leaves[i], self._remaining(specs[i]))
            whole = [added[i] if i in added else up(i) for i in range(len(leaves))]
            return structure.unflatten(whole), jax.tree.map(lambda leaf: self._psum(leaf, self.axes), others)

        in_specs = (self._stacked(kept), *[PartitionSpec()] * len(args))
        sums, others = self._shard_map(total, in_specs, (kept, PartitionSpec()))(addends, *args)
        return self._by_axes_first(sums), others

    def _added_everywhere(self, leaves: list[Any]) -> list[Any]:
        """Sums that every device has, of addends that are divided over no axis."""
        alike = Alike.of(leaves)
        return alike.apart([self._psum(stack, self.axes) for stack in alike.stack(leaves)])

    def in_blocks(self, params: Any) -> frozenset[int]:
        """The numbers of the large leaves, divided over none of `axes`, that are cut into a block for each device of them."""
        large = lambda leaf, spec: leaf.size >= _LARGE and self._cuts(leaf.shape, spec) is not None
        leaves = jax.tree.leaves(params)
        return frozenset(i for i, (leaf, spec) in enumerate(zip(leaves, self.kept, strict=False)) if large(leaf, spec))

    def _cuts(self, shape: tuple[int, ...], kept: PartitionSpec) -> tuple[int, ...] | None:
        """Into how many blocks a leaf is cut along each axis, of those that aren't divided."""
        if not self.axes or self._remaining(kept) != self.axes:
            return None  # of a leaf that is divided over them a device doesn't see all
        names = itertools.chain(_names(kept), itertools.repeat(()))
        return cuts(shape, self.parts, [axis for axis, over in zip(range(len(shape)), names, strict=False) if not over])

    def _own_block(self, shape: tuple[int, ...], kept: PartitionSpec) -> Block:
        """A device's block of a leaf that is `in_blocks`; traced, within `on_each`."""
        into = self._cuts(shape, kept)
        assert into is not None
        return Block.numbered(jax.lax.axis_index(self.axes), shape, into)

    def _by_axes_first(self, params: Any) -> Any:
        """Where an axis is divided over others before some of `axes`, over those first: XLA can end the process otherwise."""

        def put(leaf: Any, spec: PartitionSpec) -> Any:
            ordered = _ordered(spec, self.axes)
            if ordered == _names(spec):
                return leaf
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(automatic(self.mesh), PartitionSpec(*ordered)))

        leaves, structure = jax.tree.flatten(params)
        return structure.unflatten(map(put, leaves, self.kept))  # of which the parameters are the first

    def _stacked(self, kept: Any) -> Any:
        """Where addends are: those of parameters, which are divided like `kept`, and others."""
        of_sum = lambda spec: PartitionSpec(self._remaining(spec) or None, *spec)
        return jax.tree.map(of_sum, kept, is_leaf=_is_spec), PartitionSpec(self.axes)

    def _remaining(self, spec: PartitionSpec) -> tuple[str, ...]:
        """The axes over which an addend of a parameter isn't added up yet."""
        return tuple(axis for axis in self.axes if axis not in itertools.chain(*_names(spec)))

    def _psum(self, leaf: Any, axes: tuple[str, ...]) -> Any:
        return jax.lax.psum(leaf, axes) if axes else leaf

    def _shard_map(self, program: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        if not self.axes:
            return program
        ones = {axis for axis, size in self.mesh.shape.items() if size == 1}  # one of them beside `axes` confuses XLA
        return jax.shard_map(
            program,
            mesh=automatic(self.mesh),
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names={*self.axes, *ones},
            check_vma=False,  # a loss has loops whose carries it doesn't know
        )

    def whole(self, params: Any) -> Any:
        """Parameters of which a device has its part; traced, within `on_each`."""
        return self._along(lambda leaf, names, axis: jax.lax.all_gather(leaf, names, axis=axis, tiled=True), params)

    def scattered(self, sums: Any) -> Any:
        """Sums like `whole` parameters, added up over the devices among which a parameter is divided, each of which has its
        part; traced, within `on_each`."""
        scatter = lambda leaf, names, axis: jax.lax.psum_scatter(leaf, names, scatter_dimension=axis, tiled=True)
        return self._along(scatter, sums)

    def _along(self, collect: Callable[[Any, tuple[str, ...], int], Any], params: Any) -> Any:
        """`collect(leaf, names, axis)` for each axis of a parameter that is divided over axes of those names."""

        def collected(leaf: Any, spec: PartitionSpec) -> Any:
            for axis, names in enumerate(_names(spec)):
                if names:
                    leaf = collect(leaf, names, axis)
            return leaf

        return jax.tree.map(collected, params, self._divided(params))

    def first(self, start: Any, number: int) -> Any:
        """Where a device's part of `number` positions from `start` on begins, a multiple of `parts`; traced, within `on_each`."""
        if not self.axes:
            return start
        return start + jax.lax.axis_index(self.axes) * (number // self.parts)

    def own(self, rows: Any) -> Any:
        """A device's part of rows [m, ...], m a multiple of `parts`; traced, within `on_each`."""
        number = rows.shape[0]
        return jax.lax.dynamic_slice_in_dim(rows, self.first(0, number), number // self.parts)

    def own_rows(self, leaf: Any, indices: Any, read: Callable[[Any, Any], Any]) -> Any:
        """The device's part of the rows at `indices` [m]; traced, within `on_each`.

        Where the data are divided each device reads what it has of all m, and gets its part of what others have.

        Args:
            leaf: array [n, ...], or the device's part of its rows.
            indices: int32 [m] of 0 to n, which is no row.
            read: `read(leaf, indices)` gives zeros for indices beyond the leaf.
        """
        if not self.rows_divided:
            return read(leaf, self.own(indices))
        if _checks.is_key(leaf):
            return by_words(partial(self.own_rows, indices=indices, read=read), leaf)
        here = indices - jax.lax.axis_index(self.axes) * leaf.shape[0]
        rows = read(leaf, jnp.where((here >= 0) & (here < leaf.shape[0]), here, leaf.shape[0]))
        added = _as_whole_numbers(rows)  # zeros but on one device
        own = jax.lax.psum_scatter(added, self.axes, scatter_dimension=0, tiled=True)
        return own.view(rows.dtype) if jnp.issubdtype(rows.dtype, jnp.floating) else own.astype(rows.dtype)

    def _divided(self, params: Any) -> Any:
        """Over which of `axes` the parameters are divided, or what is like them."""
        structure = jax.tree.structure(params)
        mine = lambda names: tuple(name for name in names if name in self.axes) or None
        specs = self.kept[: structure.num_leaves]  # of which the parameters are the first
        return structure.unflatten(PartitionSpec(*map(mine, _names(spec))) for spec in specs)

    def run(self, step: Callable[..., tuple[Any, Any]], changing: Any, *args: Any) -> tuple[Any, Any]:
        """`step(changing, *args)`: the changed values where they were, and others everywhere; traced.

        What the compiler is to divide by itself has axes of type Auto within `step`, whatever the user's mesh has.
        """
        return self._automatically(step, (self._places(changing), self._everywhere), changing, *args)

    def gather(self, addends_of: Callable[..., Any], params: Any, *args: Any, several: Callable[[Any], Any]) -> Any:
        """`addends_of(params, *args)`, which are what `on_each` gave for such `several`, where they are; traced."""
        return self._automatically(addends_of, several(self.places_of_addends(params)), params, *args)

    def places_of_addends(self, params: Any) -> Any:
        """Where each leaf is of what `on_each` gives."""
        leaves, structure = jax.tree.flatten(params)
        kept = jax.tree.unflatten(structure, self.kept[: len(leaves)])
        return jax.tree.map(partial(NamedSharding, self.mesh), self._stacked(kept), is_leaf=_is_spec)

    @property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def _automatically(self, program: Callable[..., Any], places: Any, *args: Any) -> Any:
        """`program(*args)`, within which all axes are the compiler's to divide over; what it gives is where `places` say."""
        explicit = explicit_axes(self.mesh)
        if not explicit:
            return jax.lax.with_sharding_constraint(program(*args), places)
        is_place = lambda each: isinstance(each, NamedSharding)
        of_others = lambda name: tuple(each for each in name if each in explicit) or None
        named_alone = lambda place: NamedSharding(self.mesh, PartitionSpec(*map(of_others, _names(place.spec))))
        outside = jax.tree.map(named_alone, places, is_leaf=is_place)

        def divided(*args: Any) -> Any:
            inside = jax.tree.map(lambda place: place.spec, places, is_leaf=is_place)
            return jax.lax.with_sharding_constraint(program(*args), inside)

        automatic: Any = jax.sharding.auto_axes(divided, axes=explicit, out_sharding=outside)
        return automatic(*args)


def spread_of(changing: Any, params: Any, data: Any) -> Spread | None:
    """How the user has laid out a step's values; None where they are on no mesh.

    Examples are divided as the rows of the data are. Where every device has all data, they are divided over the axes that no
    parameter is divided over, or over all axes if there are none.

    Args:
        changing: what a step changes, parameters among it.
        params: pytree of arrays.
        data: pytree of arrays [n, ...].

    Raises:
        UsageError: for arrays on different meshes, or on one of some of the processes, data on a device beside the mesh, and
            data whose leaves are divided over different axes.
    """
    meshes = {mesh for leaf in jax.tree.leaves((changing, data)) if (mesh := mesh_of(leaf))}
    if not meshes:
        return None
    if len(meshes) > 1:
        trees = {"data": data, "params": params, "state": changing}
        raise _several("is on", "put the state and the data on one mesh", mesh_of, trees)
    mesh = meshes.pop()
    if mesh.is_multi_process and (processes := {device.process_index for device in mesh.devices.flat}) != set(
        range(jax.process_count())
    ):
        raise UsageError(
            f"the mesh is of the processes {sorted(processes)} of {jax.process_count()}: lay the arrays out over devices of all "
            "processes, jax.devices(), or of this one alone, jax.local_devices()"
        )
    devices = set(mesh.devices.flat)
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if getattr(leaf, "committed", False) and leaf.devices() != devices:
            raise UsageError(
                f"data{jax.tree_util.keystr(path)} was put on {', '.join(map(str, leaf.devices()))}, and other arrays are on "
                f"{mesh}: put all data there, with jax.device_put(array, jax.NamedSharding(mesh, spec))"
            )
    divided = {_rows_of(leaf) for leaf in jax.tree.leaves(data) if mesh_of(leaf)} or {()}
    if len(divided) > 1:
        raise _several("has its rows over the axes", "divide all of the data alike", _rows_of, {"data": data})
    busy = {axis for leaf in jax.tree.leaves(params) for axes in _axes_of(leaf) for axis in axes}
    dividing = tuple(axis for axis in mesh.axis_names if mesh.shape[axis] > 1)
    free = tuple(axis for axis in dividing if axis not in busy)
    kept = tuple(PartitionSpec(*_axes_of(leaf)) for leaf in jax.tree.leaves(changing))
    of_rows = divided.pop()
    axes = tuple(axis for axis in of_rows if axis in dividing) if of_rows else free or dividing
    return Spread(mesh, axes, kept, bool(of_rows and axes))


def by_words(function: Callable[[Any], Any], key: Any) -> Any:
    """Keys of the words that a function makes of a key's."""
    return jax.random.wrap_key_data(function(jax.random.key_data(key)), impl=jax.random.key_impl(key))


def _as_whole_numbers(rows: Any) -> Any:
    """Rows to which zeros can be added without a change of any bit: not of -0.0, nor of floats too small for a device to add."""
    if jnp.issubdtype(rows.dtype, jnp.floating):
        return rows.view(f"uint{jnp.finfo(rows.dtype).bits}")
    return rows.astype(jnp.int8) if rows.dtype == jnp.bool_ else rows


def _several(verb: str, fix: str, of: Callable[[Any], Any], trees: dict[str, Any]) -> UsageError:
    """An error that names two arrays of which something isn't the same."""
    paths = jax.tree_util.tree_leaves_with_path(trees)
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    named = {of(leaf): name(path) for path, leaf in reversed(paths) if mesh_of(leaf)}
    (one, first), (other, second), *_ = named.items()
    return UsageError(
        f"{first} {verb} {one} and {second} {other}: {fix}, with jax.device_put(array, jax.NamedSharding(mesh, spec))"
    )


def _axes_of(leaf: Any) -> tuple[tuple[str, ...], ...]:
    """The axes of the mesh that each axis of an array is divided over, without those at the end that aren't."""
    axes = _names(leaf.sharding.spec) if mesh_of(leaf) else []
    while axes and not axes[-1]:
        axes.pop()
    return tuple(axes)


def _names(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """The axes of a mesh, for each axis of an array that says any."""
    return [(each,) if isinstance(each, str) else tuple(each or ()) for each in spec]


def _ordered(spec: PartitionSpec, first: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The axes of a mesh for each axis of an array, those of `first` before others."""
    return [tuple(sorted(names, key=lambda name: name not in first)) for names in _names(spec)]


def _first(leaf: Any) -> Any:
    """Of one device, what has a leading axis of devices."""
    return leaf[0]


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, PartitionSpec)


def _rows_of(leaf: Any) -> tuple[str, ...]:
    """The axes of the mesh that an array's rows are divided over."""
    return next(iter(_axes_of(leaf)), ())
