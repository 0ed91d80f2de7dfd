"""The sum of clipped gradients from one forward and one backward pass."""

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._types import Params
from ...jaxprs import as_one_value, evaluate, heads_outside_on_tpus, vectorised
from ...jaxprs._jaxpr import Eqn, Literal, Var, bind, is_cast
from .._arithmetic import Arithmetic, rounded, rounded_on_its_way
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
from .._norm import ONE_SUM, added_up
from .._reducer import Examples
from ._gradient import assemble, form_pieces, outer_products, sum_gradients, sum_lookups
from ._lookups import norm_of_lookups, squares_of_lookups
from ._norms import norm_of_sum
from ._plan import Component, Plan
from ._pull_back import pull_back_of, pulled_back
from ._rounded import (
    LOOSELY,
    Lengths,
    lengths_of,
    norm_by_gram_matrices,
    norm_of_formed,
    norm_of_single_row,
    reach_of,
    squares_of_formed,
    sums_of_products,
    takes_lengths,
    without_infinite,
)
from ._tap import make_taps, run_tapped
from ._trace import Traced
from ._transformed import Measured, are_lost, form_for_sums, measured, norm_of_transformed, parts_of
from ._uses import Path, Site
from .rules import Dense, OneHot, OuterProducts
from .rules._rule import Lookups

# What is kept of each example: how it is laid out, how its norm is joined with others, how it is added up.
_PACKED = (pack_into_matrices, join_packed, sum_weighted)
_APART = (leave_apart, join_apart, sum_weighted_apart)


class _Factors(NamedTuple):
    """Of outer products, by site: its other operands, and the cotangent of its output."""

    operands: dict[Path, tuple[Any, ...]]
    cotangents: dict[Path, Any]

    def of(self, sites: Sequence[Site]) -> tuple[list[Any], list[Any]]:
        """Those of some sites."""
        return [list(self.operands[site.path]) for site in sites], [self.cotangents[site.path] for site in sites]


class _Seen(NamedTuple):
    """The results of one forward and one backward pass over a batch: [B, ...] on every array.

    Attributes:
        outs: what the loss returned.
        factors: as products read them, rounded where they are, and each one value for all its readers.
        lengths: of the factors that norms are taken with, by site.
        direct: gradients with respect to what is used without a rule, in its type.
    """

    outs: list[Any]
    factors: _Factors
    lengths: dict[Path, Lengths]
    direct: dict[Var, Any]


class _Kept(NamedTuple):
    """Gradients of every example with respect to a value that holds entries of the leaves.

    Attributes:
        anchor: the value.
        pieces: [B, ...] each.
        assemble: makes the gradient of the pieces, or of sums of them.
    """

    anchor: Var
    pieces: list[Any]
    assemble: Callable[[list[Any]], Any]


class _Unkept(NamedTuple):
    """A component whose gradients are never formed, or dropped.

    Attributes:
        component: itself.
        merged: of lookups that could meet, what became of them all, [B, ...].
        pull_back: of a transformed value.
    """

    component: Component
    merged: Lookups | None
    pull_back: Measured | None


class _Unfinished(NamedTuple):
    """A norm of each example's gradient but for its last sums.

    Attributes:
        parts: [B, E, ...] each, to be added up along all axes but the first two.
        of_totals: makes it of them, [B, E].
    """

    parts: list[Any]
    of_totals: Callable[[list[Any]], Norm]


class _Group(NamedTuple):
    """Leaves that are clipped together."""

    kept: list[_Kept]
    unkept: list[_Unkept]


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
    static = [*leaves, *(None for _ in jax.tree.leaves((batch, keys))), *jax.tree.leaves(shared)]
    seen = _forward_and_backward(plan, static, jax.tree.leaves((batch, keys)))

    groups = [_Group([], []) for _ in clipping.groups.shares]
    for component in plan.components:
        if not component.is_kept:
            groups[clipping.groups.of_leaf[component.leaves[0]]].unkept.append(_unkept(plan, component, static, seen))
            continue
        for kept in _keep(plan, component, static, seen):
            leaf = plan.leaf_of.get(kept.anchor, component.leaves[0])
            groups[clipping.groups.of_leaf[leaf]].kept.append(kept)

    pack, join, add_up = _PACKED if plan.arithmetic.packs else _APART
    packed = [pack([kept.pieces for kept in group.kept]) for group in groups]
    of_unkept = iter(_norms([unkept for group in groups for unkept in group.unkept], seen, plan.arithmetic))
    norms = [
        join(list(islice(of_unkept, len(group.unkept))), matrices, mask.shape[0])
        for group, (matrices, _) in zip(groups, packed, strict=True)
    ]
    usable, factors = as_one_value(clipping.factors([norm.upper for norm in norms], mask))
    total: dict[Var, Any] = {}
    for group, (matrices, unpack), factor in zip(groups, packed, factors, strict=True):
        for kept, part in zip(group.kept, unpack([add_up(m, usable, factor) for m in matrices]), strict=True):
            _add(total, kept.anchor, kept.assemble(part))
        for unkept in group.unkept:
            for source, part in _sum_component(unkept, seen, usable, factor, clipping, plan.arithmetic).items():
                _add(total, source, part)
    grads = treedef.unflatten(_to_leaves(plan, static, total))
    losses, *aux_leaves = seen.outs
    norm = join_norms(norms, mask.shape[0])
    return ClippedSum(grads, losses, jnp.where(mask, norm.value, 0), aux.unflatten(aux_leaves))


def _forward_and_backward(plan: Plan, static: list[Any], batch: list[Any]) -> _Seen:
    sites = plan.sites
    # All that is used is given, so that nothing is differentiated through what another use computes.
    held = _values(plan, static, [v for component in plan.components if component.sites for v in component.sources])
    used = _values(plan, static, [v for component in plan.components if component.direct for v in component.sources])
    first = len(plan.shapes)

    def one(example: list[Any]) -> tuple[Any, ...]:
        args = [*static[:first], *example, *static[first + len(example) :]]

        def loss(taps: Any, direct: list[Any]) -> tuple[Any, Any]:
            known = held | dict(zip(used, direct, strict=True))
            outs, operands = run_tapped(plan.jaxpr, args, taps, known)
            others = {
                path: tuple(v for i, v in enumerate(values) if i != sites[path].operand)
                for path, values in operands.items()
            }
            return outs[0], (outs, others)

        value, pull, (outs, operands) = jax.vjp(loss, make_taps(sites), list(used.values()), has_aux=True)
        cotangents, gradients = pull(jnp.ones((), value.dtype))
        return outs, operands, cotangents, gradients

    outs, *found, direct = vectorised(one, batch)
    computed = _Factors(*found)
    read = [path for component in plan.components for path in component.rounded_paths(plan.arithmetic)]
    unkept = [component for component in plan.components if not component.is_kept]
    bounded = {site.path for component in unkept for site in component.sites if site.rounded}

    def as_read(path: Path, value: Any, side: int) -> Any:
        if path in bounded and side == 0:
            value = without_infinite(value)
        if path not in read:
            first = cast_behind_barrier(sites[path].first_of(value) if side else value)
            return jnp.broadcast_to(first, value.shape)
        in_heads = sites[path].rule.heads(sites[path].eqn, sites[path].operand)[side]
        return rounded(value, plan.arithmetic, heads_outside_on_tpus if in_heads else None)

    factors = _Factors(
        {path: tuple(as_read(path, other, 0) for other in others) for path, others in computed.operands.items()},
        {path: as_read(path, cotangent, 1) for path, cotangent in computed.cotangents.items()},
    )
    lengths = _lengths(unkept, computed, factors, plan.arithmetic)
    return _Seen(outs, factors, lengths, dict(zip(used, direct, strict=True)))


def _lengths(
    unkept: Sequence[Component], computed: _Factors, factors: _Factors, arithmetic: Arithmetic
) -> dict[Path, Lengths]:
    """Those that norms of components are taken with, by site.

    On a TPU of the factors as they were computed, with which that fuses: a pass over what is kept of them costs more, and they
    are the same however often they are computed.
    """
    sites = [
        (site, ONE_SUM if component.is_single_row else LOOSELY)
        for component in unkept
        for site in takes_lengths(component)
    ]
    of = lambda found: [(found.operands[site.path][0], found.cotangents[site.path]) for site, _ in sites]
    both = [[tuple(each.astype(jnp.float32) for each in use) for use in of(found)] for found in (computed, factors)]
    measured = jax.lax.platform_dependent(*both, tpu=lambda computed, _: computed, default=lambda _, factors: factors)
    found = lengths_of([(*use, *arrays) for use, arrays in zip(sites, measured, strict=True)], arithmetic)
    return {site.path: each for (site, _), each in zip(sites, found, strict=True)}


def _unkept(plan: Plan, component: Component, static: Sequence[Any], seen: _Seen) -> _Unkept:
    """With the lookups merged, behind a barrier: their norm must be that of the very numbers that are added up."""
    sites, merge = component.sites, component.merge
    if component.is_transformed:
        return _Unkept(
            component, None, measured(pull_back_of(plan.jaxpr, static, sites[0], component.anchors), sites[0])
        )
    if merge is None:
        return _Unkept(component, None, None)

    def one(operands: list[Any], cotangents: list[Any]) -> Lookups:
        return merge([outer_products(*use) for use in zip(sites, operands, cotangents, strict=True)])

    return _Unkept(component, as_one_value(jax.vmap(one)(*seen.factors.of(sites))), None)


def _norms(unkept: Sequence[_Unkept], seen: _Seen, arithmetic: Arithmetic) -> list[Norm]:
    """Of each example's gradients of leaves for which they aren't kept, [B] each; their last sums are made together."""
    unfinished = [_unfinished_norm(each, seen, arithmetic) for each in unkept]
    totals = iter(added_up([part for each in unfinished for part in each.parts]))
    return [each.of_totals(list(islice(totals, len(each.parts)))) for each in unfinished]


def _unfinished_norm(unkept: _Unkept, seen: _Seen, arithmetic: Arithmetic) -> _Unfinished:
    component, merged, pull_back = unkept
    sites = component.sites
    factors = seen.factors.of(sites)
    if component.squared_counts is not None:
        if merged is not None:
            use = OuterProducts(OneHot(merged.entry), Dense(merged.rows))
        else:
            use = jax.vmap(functools.partial(outer_products, sites[0]))(*(each[0] for each in factors))
        if not arithmetic.packs:
            of_totals = functools.partial(norm_of_lookups, use, component.squared_counts, arithmetic)
            return _Unfinished([squares_of_lookups(use, arithmetic)], of_totals)
        return _finished(jax.vmap(lambda use: norm_of_sum([use], component.squared_counts))(use))
    if component.choice.form == "dropped":
        all_lengths = [seen.lengths[site.path] for site in sites]
        if pull_back is not None:
            (site,), ((operands,), (cotangent,)) = sites, factors
            formed = jax.vmap(functools.partial(form_for_sums, site))(operands, cotangent)
            reach = reach_of(site, all_lengths[0], LOOSELY).upper
            return _finished(norm_of_transformed(formed, pull_back, site, reach, arithmetic))
        formed = jax.vmap(functools.partial(_form, component))(*factors)
        shapes = [piece.shape[1:] for piece in formed]
        return _Unfinished(
            squares_of_formed(formed, arithmetic),
            lambda totals: norm_of_formed(totals, shapes, sites, all_lengths, arithmetic),
        )
    if component.is_single_row:
        return _finished(norm_of_single_row(sites[0], seen.lengths[sites[0].path], arithmetic))
    if sites[0].rounded:
        lengths = [seen.lengths.get(site.path) for site in sites]
        sums = jax.vmap(functools.partial(sums_of_products, sites))(*factors)
        return _Unfinished(sums, lambda totals: norm_by_gram_matrices(sites, totals, lengths, arithmetic))

    def one(operands: list[Any], cotangents: list[Any]) -> Norm:
        uses = [outer_products(*use) for use in zip(sites, operands, cotangents, strict=True)]
        return norm_of_sum(uses, None)

    return _finished(jax.vmap(one)(*factors))


def _finished(norm: Norm) -> _Unfinished:
    return _Unfinished([], lambda _: norm)


def _keep(plan: Plan, component: Component, static: Sequence[Any], seen: _Seen) -> list[_Kept]:
    """The gradient of every example with respect to the component's anchors, in float32."""
    pull = functools.partial(_pull, plan, static, anchors=component.anchors, rearranged=component.rearranged)
    if component.direct:
        found = [seen.direct[source] for source in component.sources]
        found = [leaf.astype(jnp.float32) for leaf in found] if component.rearranged else found
        pulled = jax.vmap(lambda parts: pull(dict(zip(component.sources, parts, strict=True))))(found)
        kept = zip(component.anchors, cast_behind_barrier(pulled), strict=True)
        return [_Kept(anchor, [g], _the_only_one) for anchor, g in kept]
    factors, sites = seen.factors.of(component.sites), component.sites
    if len(sites) == 1 and component.anchors == component.sources:
        pieces = cast_behind_barrier(jax.vmap(functools.partial(_form, component))(*factors))
        return [_Kept(component.anchors[0], pieces, functools.partial(assemble, sites[0]))]

    def one(operands: list[Any], cotangents: list[Any]) -> list[Any]:
        each = [assemble(site, form_pieces(site, o, g)) for site, o, g in zip(sites, operands, cotangents, strict=True)]
        return pull(_by_source(component, each))

    formed = cast_behind_barrier(jax.vmap(one)(*factors))
    return [_Kept(anchor, [g], _the_only_one) for anchor, g in zip(component.anchors, formed, strict=True)]


def _form(component: Component, operands: list[Any], cotangents: list[Any]) -> list[Any]:
    """The gradient of one example with respect to the component's only source, in pieces if there is a single use."""
    sites = component.sites
    each = [form_pieces(site, o, g) for site, o, g in zip(sites, operands, cotangents, strict=True)]
    if len(sites) == 1:
        return each[0]
    (formed,) = _by_source(
        component, [assemble(site, pieces) for site, pieces in zip(sites, each, strict=True)]
    ).values()
    return [formed]


def _the_only_one(pieces: list[Any]) -> Any:
    (whole,) = pieces
    return whole


def _sum_component(
    unkept: _Unkept, seen: _Seen, usable: Any, factor: Any, clipping: Clipping, arithmetic: Arithmetic
) -> dict[Var, Any]:
    """The weighted sum of the gradients with respect to the component's sources.

    Unusable examples' operands and cotangents are both replaced by zeros: a zero factor alone would leave 0 · NaN. So are those
    of an example whose cotangents a factor above 1 makes infinite: where operands are zero, no norm tells of them. Operands that
    are rounded are finite already.
    """

    def select(array: Any, which: Any, scale: Any = None) -> Any:
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return array
        column = (-1, *[1] * (array.ndim - 1))
        array = array.astype(jnp.float32)
        scaled = array if scale is None else array * scale.reshape(column)
        return jnp.where(which.reshape(column), scaled, zero)

    component, merged, pull_back = unkept
    zero = jnp.float32(0)
    if merged is not None:
        site = component.sites[0]  # all are views of the same entries
        return {site.source: sum_lookups(site, merged.entry, select(merged.rows, usable, factor))}
    if any(site.lengths for site in component.sites):
        # Zeros that XLA knows it shares with those that a loop writes over, and a GPU keeps them for as long as the loop runs.
        zero = jax.lax.optimization_barrier(zero)
    if pull_back is not None:
        (site,) = component.sites
        least = clipping.clip_norm * min(clipping.groups.shares)
        usable = usable & ~are_lost(pull_back, site, seen.lengths[site.path], least)
    operands, cotangents = seen.factors.of(component.sites)
    as_read = lambda scaled: scaled
    if component.sites[0].rounded and not component.is_single_row:
        as_read = functools.partial(rounded_on_its_way, arithmetic=arithmetic)
    once = [select(site.first_of(g), usable, factor) for site, g in zip(component.sites, cotangents, strict=True)]
    scaled = [jnp.broadcast_to(each, g.shape) for each, g in zip(once, cotangents, strict=True)]
    weighted, sites = [as_read(each) for each in scaled], component.sites
    if pull_back is not None and parts_of(arithmetic) == 2:
        operands, sites = operands * 2, sites * 2
        weighted = [*weighted, *map(as_read, map(jnp.subtract, scaled, weighted))]
    if clipping.may_lengthen:
        for each in weighted:
            usable &= jnp.all(jnp.isfinite(each), axis=range(1, each.ndim))
        weighted = [select(each, usable) for each in weighted]
    # Patches, which a norm may have read long before, are made again: kept, they would take what gradients do that are dropped.
    selects = lambda site: not site.rounded or (pull_back is not None and site.by_products)
    sums = [
        sum_gradients(site, [select(a, usable) for a in o] if selects(site) else o, g)
        for site, o, g in zip(sites, operands, weighted, strict=True)
    ]
    if pull_back is not None:
        total = functools.reduce(jnp.add, sums)
        return dict(zip(component.anchors, pulled_back(pull_back.by, sites[0], component.anchors, total), strict=True))
    return _by_source(component, sums)


def _to_leaves(plan: Plan, static: Sequence[Any], total: dict[Var, Any]) -> list[Any]:
    """Gradients with respect to all leaves, from those with respect to values that hold entries of them."""
    return _pull(plan, static, total, list(plan.leaf_of), rearranged=True)


def _pull(
    plan: Plan, static: Sequence[Any], gradients: Mapping[Var, Any], anchors: Sequence[Var], *, rearranged: bool
) -> list[Any]:
    """Gradients with respect to anchors, from those with respect to values computed from them.

    Where these are rearranged leaves this is done in float32, whatever types the leaves are cast to on their way. What else is
    cast, such as an index, stays so.
    """
    parts = list(gradients.values())
    if list(gradients) == list(anchors):
        return [part.reshape(v.aval.shape) for v, part in zip(anchors, parts, strict=True)]

    of_anchors = set(anchors)

    def run(eqn: Eqn, operands: list[Any]) -> list[Any]:
        moved = any(v in of_anchors for v in eqn.invars if not isinstance(v, Literal))
        of_anchors.update(eqn.outvars if moved else ())
        return operands if rearranged and moved and is_cast(eqn) else bind(eqn, operands)

    def sources(values: list[Any]) -> list[Any]:
        known = dict(zip(anchors, values, strict=True))
        return evaluate(plan.jaxpr, static, run, wanted=list(gradients), known=known)

    values = list(_values(plan, static, anchors).values())
    shapes, pull = jax.vjp(sources, [v.astype(jnp.float32) for v in values] if rearranged else values)
    as_given = lambda part, like: (
        part.reshape(like.shape).astype(like.dtype)
        if jnp.issubdtype(like.dtype, jnp.inexact)
        else np.zeros(like.shape, jax.dtypes.float0)
    )
    return pull([as_given(part, like) for part, like in zip(parts, shapes, strict=True)])[0]


def _values(plan: Plan, static: Sequence[Any], wanted: Sequence[Var]) -> dict[Var, Any]:
    """Of what depends on parameters alone."""
    return dict(zip(wanted, evaluate(plan.jaxpr, static, wanted=wanted), strict=True))


def _by_source(component: Component, gradients: Sequence[Any]) -> dict[Var, Any]:
    """The gradient with respect to each of the component's sources, from those of its sites."""
    total: dict[Var, Any] = {}
    for site, g in zip(component.sites, gradients, strict=True):
        _add(total, site.source, g)
    return total


def _add(total: dict[Var, Any], to: Var, part: Any) -> None:
    total[to] = total[to] + part if to in total else part
