"""How the norm of each parameter's per-example gradient will be computed, from where it is used (`_uses`) and shapes alone.

Uses that may depend on the same entries of a leaf make a component; components have no entry in common, so that their squared
norms add up. Most are a single leaf, others a part of one, or leaves that are mixed before they are used. A component with any
direct use is differentiated as a whole, for every example; thus no use is forgotten.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ...jaxprs._jaxpr import (
    DOT_GENERAL,
    JaxprParts,
    Var,
)
from .._arithmetic import Arithmetic
from ._cost import Choice, activations, choose, choose_for_matrix_unit, choose_for_transformed
from ._kinds import EXAMPLE, PARAMS, Kind
from ._pull_back import OtherForm, pull_back_of
from ._uses import DirectUse, Path, Site, Uses
from ._views import Origin, are_apart
from .rules._rule import Merge, SquaredCounts

_OF_A_NUMBER = ", of one number made of it: a penalty costs nothing as optax.add_decayed_weights, behind the noise"
_ROUNDED = frozenset(map(jnp.dtype, ("bfloat16", "float32")))  # types whose factors may be


@dataclass(frozen=True)
class Component:
    """Uses that may depend on the same entries of the leaves.

    Attributes:
        leaves: the positions of those that are used.
        sites: the uses, where all have a rule.
        direct: those without a rule.
        sources: the parameter-only values that are used.
        rearranged: whether these hold entries of the leaves and nothing else.
        anchors: values that hold each entry once, with respect to which gradients are kept where they are formed.
        choice: how the norm is computed, and why.
    """

    leaves: tuple[int, ...]
    sites: tuple[Site, ...]
    direct: tuple[DirectUse, ...]
    sources: tuple[Var, ...]
    rearranged: bool
    anchors: tuple[Var, ...]
    choice: Choice

    @property
    def is_transformed(self) -> bool:
        """Whether its only use is of a value that pulls back on each column of a gradient by itself, once it is added up."""
        return self.choice.form == "dropped" and not self.rearranged

    @property
    def is_kept(self) -> bool:
        """Whether the gradient of every example is kept, and not its norm alone."""
        return self.choice.form not in ("rows", "dropped")

    def rounded_paths(self, arithmetic: Arithmetic) -> list[Path]:
        """Of the uses whose factors are rounded before they are read."""
        if self.is_single_row or (self.choice.form == "formed" and not arithmetic.rounds_formed):
            return []
        return [site.path for site in self.sites if site.rounded]

    @property
    def is_single_row(self) -> bool:
        """Whether factors are rounded and the gradient is one outer product, or one for each matrix of the loops that stack."""
        if len(self.sites) != 1 or self.choice.form != "rows":
            return False
        (site,) = self.sites
        return site.rounded and site.layout.rows == site.own.stack == 1

    @property
    def merge(self) -> Merge | None:
        """How its uses are merged into one whose rows don't meet, where they could."""
        is_one = len(self.sites) == 1 and (self.sites[0].pooled or self.sites[0].layout.rows == 1)
        return None if is_one or not _is_mergeable(self.sites) else self.sites[0].rule.merge

    @property
    def squared_counts(self) -> SquaredCounts | None:
        """Of uses that are merged, or needn't be, since their cotangents are all the same."""
        return self.sites[0].rule.squared_counts if _is_mergeable(self.sites) else None


@dataclass(frozen=True)
class Plan:
    """How each leaf's per-example gradient is dealt with.

    Attributes:
        jaxpr: the loss, its parameter-only work hoisted.
        components: no two of which have an entry of a leaf in common.
        shapes: of all leaves.
        leaf_of: the position of each leaf by its variable.
        activations: bytes that one example needs, about.
        arithmetic: of norms and sums.
    """

    jaxpr: JaxprParts
    components: tuple[Component, ...]
    shapes: tuple[tuple[int, ...], ...]
    leaf_of: dict[Var, int]
    activations: int
    arithmetic: Arithmetic

    @property
    def sites(self) -> dict[Path, Site]:
        """All sites by path."""
        return {site.path: site for component in self.components for site in component.sites}


def make_plan(jaxpr: JaxprParts, kinds: Sequence[Kind], groups: Sequence[int], arithmetic: Arithmetic) -> Plan:
    """The plan for a loss.

    Args:
        jaxpr: of one example's loss, hoisted; its first output is the loss, the others don't matter.
        kinds: of its inputs; those of kind PARAMS are the leaves, and come first.
        groups: of each leaf, with which others it is clipped.
        arithmetic: of norms and sums.

    Returns:
        The plan.
    """
    leaves = [v for v, kind in zip(jaxpr.invars, kinds, strict=True) if kind == PARAMS]
    walk = Uses(jaxpr, kinds)
    used = dict.fromkeys([*(site.source for site in walk.sites), *(use.source for use in walk.direct)])
    static = [
        None if kind & EXAMPLE else jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)
        for v, kind in zip(jaxpr.invars, kinds, strict=True)
    ]
    components = [
        _component(sources, walk, leaves, groups, arithmetic, functools.partial(_pulls_back_by_columns, jaxpr, static))
        for sources in _connected({v: walk.origins[v] for v in used})
    ]
    # What is no larger than what it is used in ("direct") is counted among the activations.
    kept = sum(each.choice.kept for each in components if each.sites or each.choice.form == "materialised")
    return Plan(
        jaxpr=jaxpr,
        components=tuple(components),
        shapes=tuple(tuple(v.aval.shape) for v in leaves),
        leaf_of={v: i for i, v in enumerate(leaves)},
        activations=activations(jaxpr, kinds) + 4 * kept,
        arithmetic=arithmetic,
    )


def _connected(origins: Mapping[Var, Origin]) -> list[list[Var]]:
    """Values in groups: those that may have an entry of a leaf in common, directly or through others."""
    groups: list[list[Var]] = []
    for var, origin in origins.items():
        may_meet = lambda v, origin=origin: origin.leaves & origins[v].leaves and not are_apart([origin, origins[v]])
        meets = [any(map(may_meet, group)) for group in groups]
        joined = [v for group, met in zip(groups, meets, strict=True) if met for v in group]
        groups = [group for group, met in zip(groups, meets, strict=True) if not met]
        groups.append([*joined, var])
    return groups


def _component(
    sources: Sequence[Var],
    walk: Uses,
    leaves: Sequence[Var],
    groups: Sequence[int],
    arithmetic: Arithmetic,
    pulls_back_by_columns: Callable[[Site, Sequence[Var]], bool],
) -> Component:
    origins = walk.origins
    used = sorted(frozenset[int]().union(*(origins[source].leaves for source in sources)))
    together = len({groups[leaf] for leaf in used}) == 1
    anchors = (_anchors(sources, origins) if together else ()) or tuple(leaves[leaf] for leaf in used)
    sites = tuple(site for site in walk.sites if site.source in sources)
    direct = tuple(use for use in walk.direct if use.source in sources)
    rearranged = all(origins[source].isometric for source in sources)
    if direct:
        sites, choice = (), _differentiated(direct, anchors)
    else:
        if all(_may_be_rounded(site, arithmetic) for site in sites):
            sites = tuple(replace(site, rounded=True, by_products=_by_products(site, arithmetic)) for site in sites)
        aligned = _align(sites, origins) if rearranged else None
        one_value = len(sources) == 1 and anchors == tuple(sources)
        sites, is_aligned = aligned or sites, aligned is not None
        choice = _by_rules(sites, anchors, arithmetic, aligned=is_aligned, together=together, one_value=one_value)
        if not rearranged and together and len(sites) == 1 and sites[0].rounded:
            dropped = choose_for_transformed(sites[0].layout, choice, arithmetic)
            choice = dropped if dropped != choice and pulls_back_by_columns(sites[0], anchors) else choice
    return Component(tuple(used), sites, direct, tuple(sources), rearranged, anchors, choice)


def _anchors(sources: Sequence[Var], origins: Mapping[Var, Origin]) -> tuple[Var, ...]:
    """Values from which the sources are computed, that hold each entry of the leaves once at most; none if there are none."""
    anchors = tuple(dict.fromkeys(anchor for source in sources for anchor in origins[source].anchors))
    if are_apart([origins[anchor] for anchor in anchors]):
        return anchors
    first, *others = (origins[anchor].ancestors for anchor in anchors)
    return tuple(v for v in first if all(v in ancestors for ancestors in others))[:1]


def _differentiated(uses: Sequence[DirectUse], anchors: Sequence[Var]) -> Choice:
    """What it costs to form the gradient by ordinary differentiation."""
    sizes = [v.aval.size for v in anchors]
    use = min(uses, key=lambda use: use.size)
    if use.size < max(sizes):
        why = f"no rule for {use.primitive} at {use.where}{_OF_A_NUMBER if use.size == 1 else ''}"
        return Choice("materialised", 2 * sum(sizes), sum(sizes), why)
    return Choice("direct", 2 * sum(sizes), sum(sizes), "no larger than what it is used in")


def _by_rules(
    sites: Sequence[Site],
    anchors: Sequence[Var],
    arithmetic: Arithmetic,
    *,
    aligned: bool,
    together: bool,
    one_value: bool,
) -> Choice:
    entries = sum(v.aval.size for v in anchors)
    layouts = [site.layout for site in sites]
    if sites[0].rounded:
        one_value = one_value and not any(site.by_products for site in sites)
        return choose_for_matrix_unit(
            layouts, entries, arithmetic, aligned=aligned, together=together, one_value=one_value
        )
    return choose(layouts, entries, aligned=aligned, together=together, own_norm=_is_mergeable(sites))


def _pulls_back_by_columns(jaxpr: JaxprParts, static: Sequence[Any], site: Site, anchors: Sequence[Var]) -> bool:
    try:
        jax.eval_shape(lambda static: pull_back_of(jaxpr, static, site, anchors), static)
    except OtherForm:
        return False
    return True


def _by_products(site: Site, arithmetic: Arithmetic) -> bool:
    return site.eqn.primitive is not DOT_GENERAL and not arithmetic.convolutions


def _may_be_rounded(site: Site, arithmetic: Arithmetic) -> bool:
    """Whether a matrix unit multiplies in its own precision, and the user has asked for no other."""
    if not arithmetic.rounds or (_by_products(site, arithmetic) and (site.rule.summed is None or site.lengths)):
        return False
    plain = site.eqn.params.get("precision", "none") in (
        None,
        jax.lax.Precision.DEFAULT,
        (jax.lax.Precision.DEFAULT,) * 2,
    )
    types = [v.aval.dtype for v in (*site.eqn.invars, *site.eqn.outvars)]
    return site.rule.repeats is not None and plain and all(t in _ROUNDED for t in types)


def _is_mergeable(sites: Sequence[Site]) -> bool:
    """Whether all of them, which are on the same axes, are the same way round, by rules that share a way to merge them."""
    merge, *others = {site.rule.merge for site in sites}
    return merge is not None and not others and not any(site.swap for site in sites)


def _align(sites: tuple[Site, ...], origins: Mapping[Var, Origin]) -> tuple[Site, ...] | None:
    """The sites with their layouts on the same axes of the same base, or None where they can't be brought there."""
    if len(sites) == 1:
        return sites
    views = [origins[site.source].view for site in sites]
    if all(view is not None for view in views):
        bases = {view.region for view in views if view is not None}
        axes = [view.axes for view in views if view is not None]
    else:
        bases = {site.source for site in sites}
        axes = [tuple(range(site.source.aval.ndim)) for site in sites]
    if len(bases) > 1:
        return None
    arranged, first = [], None
    for site, on in zip(sites, axes, strict=True):
        shift = sum(site.stacked)
        site = replace(site, own=site.own.sorted_by(on[shift:]))
        stack, left, right, fixed = site.layout.on_base(on)
        first = first or (stack, left, right, fixed)
        if (stack, right, left, fixed) == first and left != right:
            site = replace(site, swap=True)
        elif (stack, left, right, fixed) != first:
            return None
        arranged.append(site)
    return tuple(arranged)
