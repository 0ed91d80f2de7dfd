"""Checks of the arguments of a gradient function, before anything is compiled."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, Key

from .. import _checks
from .._errors import UsageError
from .._types import Batch, Example, LossFn, Params
from ..jaxprs import reads_any
from ..jaxprs._jaxpr import Eqn, Jaxpr, Literal, all_equations, parts_of, subjaxprs
from ..noise._copies import varying_axes
from ..noise._keys import Domain, own_key
from ._apart import foreign_primitives, refuse_what_sees_others
from ._static import unmake_static

_AS_SHARED = (
    "hand over what isn't of the records, such as frozen weights, behind the data, as jaxdp.Shared(value): the loss gets it "
    "after the example"
)
_IN_TURN = 'give jaxdp.clipped_grad method="vmap", which then computes one example after another'
_SHOWN = 3  # leaves of a batch, or records of a list, that a line can name
_ROWS_OF_CHECK = 2  # of a batch of the self-check's, whose shapes say nothing of the user's


def check_params(params: Params) -> None:
    """Refuse parameters that have no gradient: an empty tree, or leaves that aren't floating point."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise UsageError("params has no leaves: pass the pytree of arrays to differentiate")
    if isinstance(params, Mapping) and {"params", "batch_stats"} <= set(params):
        raise UsageError(
            "params hold batch_stats, which would be trained with noise like weights: give variables['params'] alone, of a "
            "model whose layers normalise each example by itself (jaxdp.validate names those that don't)"
        )
    is_running = lambda node: _is_a(node, "BatchStat")
    nodes = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_running)
    if running := [path for path, node in nodes if is_running(node)]:
        raise UsageError(
            f"params{jax.tree_util.keystr(running[0])} are running statistics, which would be trained with noise like weights: "
            "give the parameters alone, nnx.split(model, nnx.Param, ...)"
        )
    for path, leaf in leaves:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted():
            raise UsageError(
                f"the arrays of params are gone (params{jax.tree_util.keystr(path)}): a step takes those of the state that it is "
                "given. Copy them before, jax.tree.map(jnp.copy, state.params), or take those of the state it returned"
            )
        _checks.taken_as_it_is("params", leaf, "keep only floating-point arrays in params", path)
        if not (_checks.is_array(leaf) or _checks.is_number(leaf)):
            raise UsageError(
                f"params{jax.tree_util.keystr(path)} is a {type(leaf).__name__} and no array: keep only floating-point arrays in "
                "params, and close over the rest or pass it through *shared (in equinox, equinox.partition(model, "
                "equinox.is_inexact_array) divides a model so, and equinox.combine joins it in the loss)"
            )
        dtype = jnp.result_type(leaf)
        if not path and _checks.is_key(leaf):
            raise UsageError("params is a key: parameters come first, then the key, as in step.init(params, key)")
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise UsageError(
                f"params{jax.tree_util.keystr(path)} has dtype {dtype}, of which no gradient is clipped: give its real and its "
                "imaginary part as two floating-point arrays, and join them in the loss, p['re'] + 1j * p['im']"
            )
        if not jnp.issubdtype(dtype, jnp.floating):
            raise UsageError(
                f"params{jax.tree_util.keystr(path)} has dtype {dtype}, which has no gradient: pass it through *shared "
                "or close over it, and keep only floating-point arrays in params (of an nnx module, graph, weights, rest = "
                "nnx.split(model, nnx.Param, ...) takes the weights apart, and nnx.merge(graph, weights, rest, copy=True) joins "
                "them in the loss)"
            )


def _is_a(node: Any, name: str) -> bool:
    """Whether it is of a class of that name, whose module need not be imported to ask."""
    return any(kind.__name__ == name for kind in type(node).__mro__)


def check_batch(batch: Batch, fix: str = "give arrays with a leading axis [B], text as numbers of its tokens") -> int:
    """The batch size B: the leading axis that all leaves must share. `fix` is what to do about what is no array."""
    is_sparse = lambda node: _is_a(node, "JAXSparse")
    if any(map(is_sparse, jax.tree.leaves(batch, is_leaf=is_sparse))):
        raise UsageError(
            "batch holds a sparse array of JAX's, whose rows are not cut apart: give its data and indices [B, ...] as arrays, "
            "and make it of them in the loss, or give todense()"
        )
    _checks.numbers_alone("batch", batch, fix)
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if _checks.only_looks_like_an_array(leaf):
            raise UsageError(
                f"batch{jax.tree_util.keystr(path)} is a {type(leaf).__name__} and no array of NumPy's or JAX's: "
                "give numpy.asarray of it; records that are read as they are drawn are a jaxdp.reading.Source, for run.make_step"
            )
        if jnp.ndim(leaf) == 0:
            listed = (
                " (a list is a tree of its items: give numpy.asarray of it)" if isinstance(leaf, int | float) else ""
            )
            raise UsageError(
                f"batch{jax.tree_util.keystr(path)} is a scalar: every leaf needs a leading axis [B]{listed or of_records(batch)}"
            )
        sizes[jax.tree_util.keystr(path) or "(the array itself)"] = jnp.shape(leaf)[0]
    if not sizes:
        raise UsageError("batch has no leaves: pass a pytree of arrays with a leading axis [B]")
    if len(set(sizes.values())) > 1:
        several = list(sizes.items())
        listing = ", ".join(f"{name}: {size}" for name, size in several[:_SHOWN]) + ", …" * (len(several) > _SHOWN)
        raise UsageError(
            f"the leaves of batch disagree on the leading axis ({listing}): each needs one row an example{of_records(batch)}"
        )
    size = next(iter(sizes.values()))
    if size == 0:
        raise UsageError("batch has 0 rows: for an empty draw pass padded rows with mask=False")
    return size


def of_records(batch: Batch) -> str:
    """What to do with a list of records, each a tree of its own."""
    if not (isinstance(batch, list) and len(batch) > _SHOWN):
        return ""
    return (
        ". A list is a tree of its items: stack the records, jax.tree.map(lambda *leaves: numpy.stack(leaves), *records), or in "
        "make_step's step give jaxdp.reading.Source(records)"
    )


def check_mask(mask: Any, size: int) -> Bool[Array, " B"]:
    """`mask`, or a list of bools, as an array; refuses one that isn't bool [B]."""
    _checks.taken_as_it_is("mask", mask, "give bools [B]")
    if isinstance(mask, list | tuple):
        mask = _checks.array("mask", mask, "give bools [B]")
    if not _checks.is_array(mask):
        raise UsageError(
            f"mask={mask!r} is a {type(mask).__name__}: give bools [B], True for an example and False for padding"
        )
    if jnp.shape(mask) != (size,) or jnp.result_type(mask) != jnp.bool_:
        raise UsageError(
            f"mask has shape {jnp.shape(mask)} and dtype {jnp.result_type(mask)}; it must be bool of shape ({size},): "
            "True for an example, False for padding"
        )
    return jnp.asarray(mask)


def check_has_mean(aux: Any) -> None:
    """Refuse auxiliary data of which a step can't give a mean: keys, and complex numbers, of which it would drop a part."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(aux):
        is_key = _checks.is_key(leaf)
        if is_key or jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            fix = "leave it out" if is_key else "return its .real and its .imag"
            raise UsageError(
                f"aux{jax.tree_util.keystr(path)}, which the loss returns beside its value, is of {leaf.dtype}, and a step's "
                f"metrics have means of float32: {fix}"
            )


def check_loss(
    loss_fn: LossFn,
    has_aux: bool,
    params: Params,
    batch: Batch,
    shared: tuple[Any, ...],
    rng: Key[Array, ""] | None,
    num_examples: int | None = None,
    method: str = "vmap",
) -> None:
    """Refuse a loss that has effects, or doesn't return one floating-point scalar for one example (and a key, with `rng`).

    Refuse one that closes over the batch, too, or, where a run says how many records it is of, over an array of so many rows; and
    one by which examples could see each other, vectorised as `method` does.
    """
    if rng is not None:
        _checks.key(rng, "rng", of_noise=False)
    _check_call(loss_fn, params, batch, shared, {} if rng is None else {"rng": rng})

    def one_example(params: Params, example: Example, key: Any, shared: Any) -> Any:
        try:
            out = loss_of_example(loss_fn, params, example, key, shared)
        except UsageError:
            raise
        except Exception as error:
            error.add_note(
                "loss_fn(params, example) is given one example at a time, without an axis of the batch, no jax.vmap or mean over "
                f"one: {_in_words(example)}."
                f"{_TO_WRAP if _are_records_of_a_user(example) else ''}"
            )
            raise
        _checks.numbers_alone(
            "what the loss returned", out, "return a floating-point scalar (and, with has_aux=True, arrays)"
        )
        return out

    first = shapes_of_row(batch)
    key = None if rng is None else jax.ShapeDtypeStruct(rng.shape, rng.dtype)
    jaxpr, out = jax.make_jaxpr(one_example, return_shape=True)(params, first, key, shared)
    _refuse_effects(jaxpr)
    if has_aux:
        if not (isinstance(out, tuple) and len(out) == 2):
            raise UsageError(f"with has_aux=True the loss must return (loss, aux); it returned {type(out).__name__}")
        out = out[0]
    elif isinstance(out, tuple):
        raise UsageError("the loss returned a tuple: return the scalar alone, or pass has_aux=True for (loss, aux)")
    if not hasattr(out, "shape") or out.shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
        shape = getattr(out, "shape", type(out).__name__)
        raise UsageError(
            f"the loss of one example must be a floating-point scalar; it has shape {shape} and dtype "
            f"{getattr(out, 'dtype', None)}: the function sees one example without a batch axis, so reduce to a scalar "
            "(with jnp.sum or jnp.mean) within the example"
        )
    if not reads_any(parts_of(jaxpr), len(jax.tree.leaves(params))):
        raise UsageError(
            "the loss doesn't depend on its parameters: their gradient is zero, and every step would be noise alone; compute it "
            "from loss_fn's first argument, not from a model or parameters that it closes over"
        )
    others = foreign_primitives(jaxpr)
    programs = [jaxpr]
    if others or any(map(_has_its_own_gradient, all_equations(jaxpr))):
        gradient = jax.grad(one_example, has_aux=has_aux)  # in which alone their rules are seen
        programs.append(jax.make_jaxpr(gradient)(params, first, key, shared))
    sizes = [len(jax.tree.leaves(part)) for part in (params, first, (key, shared))]
    of_example = [i == 1 for i, size in enumerate(sizes) for _ in range(size)]
    in_turn = None if method == "vmap" or others else _IN_TURN
    for program in programs:
        _refuse_effects(program)
        refuse_what_sees_others(program, of_example, in_turn)
        closed_over = [*_closed_over(program)]
        _refuse_closed_over_batch(closed_over, batch, of_a_run=num_examples is not None)
        if num_examples is not None and num_examples > 1:
            _refuse_closed_over_rows(closed_over, num_examples)


def refuse_gradients_of_devices(params: Params, values: Any, method: str = "vmap") -> None:
    """Refuse `values` that differ from device to device of a `jax.shard_map`, and parameters that don't.

    JAX adds up such a parameter's gradient over the devices: that of "one" example would be that of a row of each. To be asked of
    what a loss is given, and of the losses, which differ by what it closes over, too.
    """
    axes = varying_axes(values)
    alike = [axes - varying_axes(leaf) for leaf in jax.tree.leaves(params)]
    if (axes and method != "vmap") or any(alike):
        names = ", ".join(sorted(map(repr, axes)))
        raise UsageError(
            f"what the loss is given varies over {names} of jax.shard_map, and JAX would add up gradients of parameters over the "
            "devices before each example's is clipped. Take it out of shard_map: under jax.jit each device computes its part of "
            f'a batch that is divided, as in run.make_step; or give method="vmap" parameters that vary and are whole on every '
            f'device, jax.lax.pcast(params, ({names},), to="varying"): of divided ones each device would clip its own part by '
            "that part's norm"
        )


def check_users(data: Any, shape: tuple[int, ...]) -> None:
    """Refuse data that aren't users' records with their mask of this shape, whose last axis is of a user's records."""
    pair = data if isinstance(data, tuple) and len(data) == 2 else (None, None)
    if getattr(pair[1], "shape", None) != shape or getattr(pair[1], "dtype", None) != jnp.bool_:
        raise UsageError(
            f"the run is of users with at most records_per_user={shape[-1]} records each, and the data aren't (records, mask) "
            f"with a mask of bools {shape}: a record would be taken for a user. Give what jaxdp.data.group_by_user gives, and "
            "wrap the loss of a record in jaxdp.data.loss_of_user"
        )


_TO_WRAP = " If these are a user's records and their mask, wrap the loss of one record in jaxdp.data.loss_of_user."


def _are_records_of_a_user(example: Example) -> bool:
    """Whether an example looks as `jaxdp.data.group_by_user` groups records."""
    if not (isinstance(example, tuple) and len(example) == 2 and hasattr(mask := example[1], "dtype")):
        return False
    records = jax.tree.leaves(example[0])
    return mask.dtype == jnp.bool_ and mask.ndim == 1 and all(leaf.shape[:1] == mask.shape for leaf in records)


def _has_its_own_gradient(eqn: Eqn) -> bool:
    return eqn.primitive.name.startswith("custom_") or eqn.primitive.name == "linear_call"


def _refuse_effects(jaxpr: Any) -> None:
    if any("MutableArray" in type(effect).__name__ for effect in jaxpr.effects):
        raise UsageError(
            "the loss changes an array where it is (jax.new_ref), and what is written there can't be followed: compute it with "
            "x.at[...].set, or carry it through jax.lax.scan"
        )
    if jaxpr.effects:
        raise UsageError(
            f"the loss has effects ({', '.join(sorted(map(str, jaxpr.effects)))}): a callback or print would run on private "
            "data, an unknown number of times, and a sum over devices would be one over examples; return the value as auxiliary "
            "data instead (has_aux=True)"
        )


def _refuse_closed_over_batch(closed_over: Sequence[Any], batch: Batch, *, of_a_run: bool) -> None:
    """The batch itself; of a run's, what has the shape of a part of it that is more than a number an example."""
    leaves = jax.tree.leaves(batch)
    shapes = {leaf.shape for leaf in leaves if of_a_run and leaf.ndim > 1 and leaf.shape[0] > _ROWS_OF_CHECK}
    for value in closed_over:
        if jnp.shape(value) in shapes or any(value is leaf for leaf in leaves):
            raise UsageError(
                f"the loss closes over an array of shape {jnp.shape(value)}, as the batch has: if that is made of the batch, "
                "every example's gradient depends on all of them, and no clip norm bounds what one moves. Let the loss use its "
                f"own example alone; {_AS_SHARED}"
            )


def _refuse_closed_over_rows(closed_over: Sequence[Any], num_examples: int) -> None:
    """One array of so many rows, or so many that are alike."""
    shapes = Counter((jnp.shape(value), str(value.dtype)) for value in closed_over if hasattr(value, "dtype"))
    for value in closed_over:
        shape = jnp.shape(value)
        if num_examples in shape or (shape and shapes[shape, str(value.dtype)] >= num_examples):
            what = "an array" if num_examples in shape else "as many arrays"
            raise UsageError(
                f"the loss closes over {what} of shape {shape}, and {num_examples} is the run's num_examples: if it is made of "
                "the records, every example's gradient depends on all of them, and no clip norm bounds what one moves. Rows "
                f"belong into the data; {_AS_SHARED}"
            )


def _closed_over(jaxpr: Jaxpr) -> Iterator[Any]:
    """The constants of a jaxpr and of those within it."""
    parts = parts_of(jaxpr)
    yield from parts.consts
    for eqn in parts.eqns:
        yield from (v.val for v in eqn.invars if isinstance(v, Literal))
        for inner in subjaxprs(eqn):
            yield from _closed_over(inner)


def _check_call(
    loss_fn: LossFn, params: Params, batch: Batch, shared: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """Refuse a loss that doesn't take what it would be given, where its signature can be read."""
    try:
        signature = inspect.signature(loss_fn)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        signature.bind(params, batch, *shared, **keywords)
    except TypeError as error:
        call = ", ".join(
            ["params", "example", *(f"shared {i}" for i in range(len(shared))), *(f"{name}=key" for name in keywords)]
        )
        lacking = next((name for name in ("key", "dropout_key", "rngs") if repr(name) in str(error)), None)
        if lacking or ("'rng'" in str(error) and "rng" not in keywords):
            fix = "give rng=, a secret key that is new for each call"
            if lacking:
                fix = f"each example's own key comes as rng, so call {lacking} that; what is shared comes behind the batch"
            raise UsageError(f"loss_fn can't be called as loss_fn({call}): {error}; {fix}") from error
        raise UsageError(
            f"loss_fn can't be called as loss_fn({call}): {error}. Give it parameters for what it is called with: an example is "
            "one argument, as in x, y = example; what comes behind the batch is handed on to it, and a key as rng=, by that "
            "name, where the gradient function gets one"
        ) from error


def takes_rng(loss_fn: LossFn) -> bool:
    """Whether a loss takes `rng=`, and is to be given a key of its own for each example."""
    _checks.function("loss_fn", loss_fn, "give a function of (params, example)")
    try:
        return "rng" in inspect.signature(loss_fn).parameters
    except (TypeError, ValueError):  # of a builtin
        return False


def taking_rng_as(loss_fn: LossFn, loss: Callable[..., Any]) -> Callable[..., Any]:
    """`loss(params, example, **keywords)` as a loss that takes `rng=` where `loss_fn` does, and else nothing more."""
    if takes_rng(loss_fn):
        return lambda params, example, *, rng: loss(params, example, rng=rng)
    return lambda params, example: loss(params, example)


def loss_of_example(loss_fn: LossFn, params: Params, example: Example, key: Any, shared: tuple[Any, ...]) -> Any:
    """The loss of one example, with its auxiliary data if it has any; without a key, it gets no `rng`."""
    keywords = {} if key is None else {"rng": key}
    return loss_fn(params, example, *unmake_static(shared), **keywords)


def _in_words(example: Example) -> str:
    """The arrays of an example, with their types and shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(example)
    return ", ".join(f"example{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves)


def shapes_of_row(batch: Batch) -> Any:
    """The shapes and dtypes of one row of a batch."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)


def example_keys(rng: Key[Array, ""], size: int, offset: int | Int[Array, ""] = 0) -> Key[Array, " B"]:
    """One key an example, from its position in the batch alone, so that padding or splitting the batch changes none."""
    positions = jnp.arange(size, dtype=jnp.int32) + offset
    own = own_key(rng, Domain.LOSS)
    return jax.vmap(lambda position: jax.random.fold_in(own, position))(positions)
