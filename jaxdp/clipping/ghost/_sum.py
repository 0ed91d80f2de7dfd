"""The sum of clipped gradients from one forward and one backward pass."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._types import Params
from ...jaxprs import evaluate
from ...jaxprs._jaxpr import Eqn, bind, is_cast
from .._arithmetic import Arithmetic, rounded
from .._clip import (
    ClippedSum,
    Clipping,
    Norm,
    cast_behind_barrier,
    join_apart,
    join_norms,
    join_packed,
    leave_apart,
    pack_into_matrices,
    sum_weighted,
    sum_weighted_apart,
)
from .._reducer import Examples
from ._gradient import form_gradient, outer_products, sum_gradients
from ._norms import norm_of_sum
from ._plan import Component, Path, Plan, Site
from ._rounded import norm_by_gram_matrices, norm_of_formed, norm_of_single_row
from ._tap import make_taps, run_tapped
from ._trace import Traced

# What is kept of each example: how it is laid out, how its norm is joined with others, how it is added up.
_PACKED = (pack_into_matrices, join_packed, sum_weighted)
_APART = (leave_apart, join_apart, sum_weighted_apart)


class _Seen(NamedTuple):
    """The results of one forward and one backward pass over a batch: [B, ...] on every array."""

    outs: list[Any]
    operands: dict[Path, tuple[Any, ...]]
    cotangents: dict[Path, Any]
    direct: dict[int, Any]


class _Group(NamedTuple):
    """Leaves that are clipped together.

    Attributes:
        kept: gradients of every example by leaf, [B, ...].
        formed: components that are one rearrangement of their leaves, and its gradients of every example.
        unkept: components whose gradients are never formed, or dropped.
    """

    kept: dict[int, Any]
    formed: list[tuple[Component, Any]]
    unkept: list[Component]


def sum_by_ghost(
    loss: Traced,
    clipping: Clipping,
    params: Params,
    examples: Examples,
    shared: tuple[Any, ...],
) -> ClippedSum:
    """The clipped sum of checked examples; losses and aux of masked ones are not zeroed."""
    plan, aux = loss
    batch, mask, keys = examples
    leaves, treedef = jax.tree.flatten(params)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    shared_leaves = jax.tree.leaves(shared)
    seen = _forward_and_backward(plan, leaves, jax.tree.leaves((batch, keys)), shared_leaves)

    static = [*leaves, *(None for _ in jax.tree.leaves((batch, keys))), *shared_leaves]
    by_leaf = dict(seen.direct)
    groups = [_Group({}, [], []) for _ in clipping.groups.shares]
    for component in plan.components:
        first, *others = {clipping.groups.of_leaf[leaf] for leaf in component.leaves}
        if component.choice.form != "formed":
            groups[first].unkept.append(component)
        elif component.is_one_rearrangement and not others:
            groups[first].formed.append((component, _form(plan, component, static, seen, by_leaf=False)))
        else:
            by_leaf |= _form(plan, component, static, seen, by_leaf=True)
    for group, kept in zip(groups, clipping.by_group(by_leaf), strict=True):
        group.kept.update(kept)

    total: dict[int, Any] = {}
    pack, join, add_up = _PACKED if plan.arithmetic.packs else _APART
    packed = [pack(cast_behind_barrier((group.kept, [grads for _, grads in group.formed]))) for group in groups]
    norms = []
    for group, (matrices, _) in zip(groups, packed, strict=True):
        own = [_norms(component, seen, plan.arithmetic) for component in group.unkept]
        norms.append(join(own, matrices, mask.shape[0]))
    usable, factors = clipping.factors([norm.upper for norm in norms], mask)
    for group, (matrices, unpack), factor in zip(groups, packed, factors, strict=True):
        kept, formed = unpack([add_up(matrix, usable, factor) for matrix in matrices])
        total |= kept
        for (component, _), part in zip(group.formed, formed, strict=True):
            total |= _pullback(plan, component, static)(part)
        for component in group.unkept:
            total |= _sum_component(plan, component, static, seen, usable, factor)
    zero = lambda leaf: jnp.zeros(leaves[leaf].shape, jnp.float32)
    grads = treedef.unflatten([total[leaf] if leaf in total else zero(leaf) for leaf in range(len(leaves))])
    losses, *aux_leaves = seen.outs
    norm = join_norms(norms, mask.shape[0])
    return ClippedSum(grads, losses, jnp.where(mask, norm.value, 0), aux.unflatten(aux_leaves))


def _forward_and_backward(plan: Plan, leaves: list[Any], batch: list[Any], shared: list[Any]) -> _Seen:
    sites = plan.sites

    def one(example: list[Any]) -> tuple[Any, ...]:
        def loss(taps: Any, direct: dict[int, Any]) -> tuple[Any, Any]:
            args = [direct.get(i, leaf) for i, leaf in enumerate(leaves)]
            outs, operands = run_tapped(plan.jaxpr, [*args, *example, *shared], taps)
            others = {
                path: tuple(v for i, v in enumerate(values) if i != sites[path].operand)
                for path, values in operands.items()
            }
            return outs[0], (outs, others)

        direct = {leaf: leaves[leaf] for leaf in plan.direct}
        value, pull, (outs, operands) = jax.vjp(loss, make_taps(sites), direct, has_aux=True)
        cotangents, gradients = pull(jnp.ones((), value.dtype))
        return outs, operands, cotangents, gradients

    seen = _Seen(*jax.vmap(one)(batch))
    read = [path for component in plan.components if not component.is_single_row for path in component.rounded_paths]
    as_read = lambda path, value: rounded(value) if path in read else cast_behind_barrier(value)
    operands = {path: tuple(as_read(path, other) for other in others) for path, others in seen.operands.items()}
    cotangents = {path: as_read(path, cotangent) for path, cotangent in seen.cotangents.items()}
    direct = cast_behind_barrier(seen.direct)
    return _Seen(seen.outs, operands, cotangents, direct)


def _norms(component: Component, seen: _Seen, arithmetic: Arithmetic) -> Norm:
    """Of each example's gradient with respect to leaves for which it isn't kept, [B]."""
    sites = component.sites

    def one(operands: list[Any], cotangents: list[Any]) -> Norm:
        if component.choice.form == "dropped":
            each = [form_gradient(site, o, g) for site, o, g in zip(sites, operands, cotangents, strict=True)]
            (formed,) = _by_source(component, each)
            return norm_of_formed(formed, sites, operands, cotangents, arithmetic)
        if component.is_single_row:
            return norm_of_single_row(sites[0], operands[0], cotangents[0], arithmetic)
        if sites[0].rounded:
            return norm_by_gram_matrices(sites, operands, cotangents, arithmetic)
        uses = [outer_products(site, o, g) for site, o, g in zip(sites, operands, cotangents, strict=True)]
        return norm_of_sum(uses, component.square)

    return jax.vmap(one)(*_of(sites, seen))


def _form(plan: Plan, component: Component, static: Sequence[Any], seen: _Seen, *, by_leaf: bool) -> Any:
    """The gradient of every example, [B, ...], with respect to the component's sources in a list, or to its leaves."""
    pull = _pullback(plan, component, static)

    def one(operands: list[Any], cotangents: list[Any]) -> Any:
        each = [form_gradient(site, o, g) for site, o, g in zip(component.sites, operands, cotangents, strict=True)]
        formed = _by_source(component, each)
        return pull(formed) if by_leaf else formed

    return jax.vmap(one)(*_of(component.sites, seen))


def _sum_component(
    plan: Plan, component: Component, static: Sequence[Any], seen: _Seen, usable: Any, factor: Any
) -> dict[int, Any]:
    """The weighted sum of the gradients with respect to the component's leaves.

    Unusable examples' operands and cotangents are both replaced by zeros: a zero factor alone would leave 0 · NaN.
    """

    def select(array: Any, scale: Any = None) -> Any:
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return array
        column = (-1, *[1] * (array.ndim - 1))
        array = array.astype(jnp.float32)
        scaled = array if scale is None else array * scale.reshape(column)
        return jnp.where(usable.reshape(column), scaled, 0)

    operands, cotangents = _of(component.sites, seen)
    as_read = rounded if component.sites[0].rounded and not component.is_single_row else lambda scaled: scaled
    sums = [
        sum_gradients(site, [select(a) for a in o], as_read(select(g, factor)))
        for site, o, g in zip(component.sites, operands, cotangents, strict=True)
    ]
    return _pullback(plan, component, static)(_by_source(component, sums))


def _pullback(plan: Plan, component: Component, static: Sequence[Any]) -> Callable[[Sequence[Any]], dict[int, Any]]:
    """From gradients with respect to each site's source to those with respect to the leaves.

    Where the sources are rearranged leaves this is done in float32, whatever types the leaves are cast to on their way.
    """
    dtype = jnp.float32 if component.rearranged else None

    def run(eqn: Eqn, operands: list[Any]) -> list[Any]:
        return operands if component.rearranged and is_cast(eqn) else bind(eqn, operands)

    def sources(values: dict[int, Any]) -> list[Any]:
        args = [values.get(i, value) for i, value in enumerate(static)]
        return evaluate(plan.jaxpr, args, run, wanted=component.sources)

    values = {i: static[i].astype(dtype) if dtype else static[i] for i in component.leaves}
    shapes, pull = jax.vjp(sources, values)

    def back(gradients: Sequence[Any]) -> dict[int, Any]:
        return pull([g.reshape(s.shape).astype(s.dtype) for g, s in zip(gradients, shapes, strict=True)])[0]

    return back


def _by_source(component: Component, gradients: Sequence[Any]) -> list[Any]:
    """The gradient with respect to each of the component's sources, from those of its sites."""
    total: dict[Any, Any] = {}
    for site, g in zip(component.sites, gradients, strict=True):
        total[site.source] = total[site.source] + g if site.source in total else g
    return [total[source] for source in component.sources]


def _of(sites: Sequence[Site], seen: _Seen) -> tuple[list[Any], list[Any]]:
    return [list(seen.operands[site.path]) for site in sites], [seen.cotangents[site.path] for site in sites]
