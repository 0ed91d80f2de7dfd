"""Where each parameter is used, and how the norm of its per-example gradient will be computed.

The plan is made from shapes alone. Every use is of a value computed from parameters alone, and either has a rule (a *site*) or
is *direct*. Uses that may depend on the same entries of a leaf make a component; components have no entry in common, so that
their squared norms add up. Most are a single leaf, others a part of one, or leaves that are mixed before they are used. A
component with any direct use is differentiated as a whole, for every example; thus no use is forgotten.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from ...jaxprs import constant_value
from ...jaxprs._jaxpr import (
    DOT_GENERAL,
    REMAT,
    SCAN,
    STOP_GRADIENT,
    Eqn,
    JaxprParts,
    Literal,
    Var,
    inner_jaxpr,
    parts_of,
    scan_parts,
    source_line,
)
from .._arithmetic import Arithmetic
from . import rules
from ._cost import Choice, activations, choose, choose_for_matrix_unit
from ._kinds import BOTH, EXAMPLE, NEITHER, PARAMS, Kind, output_kinds, scan_kinds
from ._views import Origin, are_apart, origin_of_leaf, origins_of_outputs
from .rules import Layout, Rule
from .rules._rule import Merge, Square

Path = tuple[int, ...]
_ROUNDED = frozenset(map(jnp.dtype, ("bfloat16", "float32")))  # types whose factors may be


@dataclass(frozen=True)
class Site:
    """One use of a parameter-only value, with a rule.

    Attributes:
        path: the equation's place: its number in the loss, then in the bodies of loops.
        eqn, operand: the equation, and which of its operands is the parameter.
        source: the parameter-only variable of the loss that is used; in loops it has further leading axes, below.
        stacked: for each loop around the equation, whether it scans over the parameter (else the loop adds rows).
        lengths: how many steps each of these loops makes.
        rule: the rule that covers it.
        own: the layout of the equation's operand itself, its axes in the order that the component's uses share.
        swap: whether left and right are exchanged to agree with the component's other uses.
        pooled: axes of the output along which all cotangents are the same, since nothing but the sum over them is used.
        rounded: whether the factors of its outer products are read as a matrix unit rounds them.
        by_products: whether sums are made by products of rows, since the operation itself may be computed by others.
    """

    path: Path
    eqn: Eqn
    operand: int
    source: Var
    stacked: tuple[bool, ...]
    lengths: tuple[int, ...]
    rule: Rule
    own: Layout
    swap: bool = False
    pooled: tuple[int, ...] = ()
    rounded: bool = False
    by_products: bool = False

    @property
    def precision(self) -> jax.lax.Precision:
        """Of products that are exact: where factors are bfloat16 numbers, a matrix unit's own is enough."""
        return jax.lax.Precision.DEFAULT if self.rounded else jax.lax.Precision.HIGHEST

    @property
    def layout(self) -> Layout:
        """The layout of the whole source, loops included."""
        loops = list(zip(self.stacked, self.lengths, strict=True))
        shift = sum(self.stacked)
        move = lambda axes: tuple(axis + shift for axis in axes)
        return Layout(
            stack_axes=(*range(shift), *move(self.own.stack_axes)),
            left_axes=move(self.own.left_axes),
            right_axes=move(self.own.right_axes),
            stack=self.own.stack * math.prod(n for stacked, n in loops if stacked),
            rows=self.own.rows * math.prod(n for stacked, n in loops if not stacked),
            left=self.own.left,
            right=self.own.right,
            fixed=self.own.fixed,
            one_hot=self.own.one_hot,
        )


@dataclass(frozen=True)
class DirectUse:
    """A use without a rule: of what, by what, where, and how many entries it computes."""

    source: Var
    primitive: str
    where: str
    size: int


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
    def square(self) -> Square | None:
        """The own way to the squared norm of what is merged, or needn't be."""
        return self.sites[0].rule.square if _is_mergeable(self.sites) else None


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
    walk = _Walk(jaxpr, kinds)
    used = dict.fromkeys([*(site.source for site in walk.sites), *(use.source for use in walk.direct)])
    components = [
        _component(sources, walk, leaves, groups, arithmetic)
        for sources in _connected({v: walk.origins[v] for v in used})
    ]
    kept = sum(component.choice.kept for component in components if component.sites)
    return Plan(
        jaxpr=jaxpr,
        components=tuple(components),
        shapes=tuple(tuple(v.aval.shape) for v in leaves),
        leaf_of={v: i for i, v in enumerate(leaves)},
        activations=activations(jaxpr, kinds) + 4 * kept,
        arithmetic=arithmetic,
    )


@dataclass(frozen=True)
class _Use:
    """A parameter-only value within a body: which of the loss's variables it is, sliced by which loops."""

    source: Var
    stacked: tuple[bool, ...]


@dataclass
class _Scope:
    path: Path
    lengths: tuple[int, ...]
    kinds: dict[Var, Kind] = field(default_factory=dict)
    uses: dict[Var, _Use] = field(default_factory=dict)

    def kind(self, atom: Var | Literal) -> Kind:
        return NEITHER if isinstance(atom, Literal) else self.kinds[atom]


class _Walk:
    """One walk over the loss, into loops, that collects every use of every leaf."""

    def __init__(self, jaxpr: JaxprParts, kinds: Sequence[Kind]) -> None:
        self.sites: list[Site] = []
        self.direct: list[DirectUse] = []
        self.origins: dict[Var, Origin] = {}
        scope = _Scope((), ())
        scope.kinds = dict.fromkeys(jaxpr.constvars, NEITHER) | dict(zip(jaxpr.invars, kinds, strict=True))
        for index, var in enumerate(v for v in jaxpr.invars if scope.kinds[v] == PARAMS):
            self.origins[var] = origin_of_leaf(index, var)
            scope.uses[var] = _Use(var, ())
        self._equations(jaxpr, scope)
        loss = jaxpr.outvars[0]
        if scope.kind(loss) == PARAMS:
            self.direct.append(DirectUse(scope.uses[loss].source, "the loss itself", "", 1))

    def _equations(self, jaxpr: JaxprParts, scope: _Scope) -> None:
        for number, eqn in enumerate(jaxpr.eqns):
            inputs = [scope.kind(v) for v in eqn.invars]
            meets = any(kind & EXAMPLE for kind in inputs)
            outs = output_kinds(eqn, inputs)
            params = [i for i, kind in enumerate(inputs) if kind == PARAMS]
            if params and not meets and not scope.path:
                origins = [self.origins.get(v) if scope.kind(v) == PARAMS else None for v in eqn.invars]
                found = origins_of_outputs(eqn, origins, functools.partial(constant_value, jaxpr))
                self.origins.update(zip(eqn.outvars, found, strict=True))
                scope.uses.update((v, _Use(v, ())) for v in eqn.outvars)
                if eqn.primitive is STOP_GRADIENT:  # a constant, as far as gradients go
                    outs = [NEITHER]
            elif params:
                self._collect_uses(eqn, params, inputs, scope, jaxpr, number)
                outs = [BOTH] * len(outs)
            scope.kinds.update(zip(eqn.outvars, outs, strict=True))

    def _collect_uses(
        self, eqn: Eqn, params: list[int], inputs: list[Kind], scope: _Scope, body: JaxprParts, number: int
    ) -> None:
        path = (*scope.path, number)
        meets = any(kind & EXAMPLE for kind in inputs)
        if eqn.primitive is SCAN and meets:  # else a carry of parameters is another value at each step
            parts = scan_parts(eqn)
            first_scanned = parts.num_consts + parts.num_carry
            inside = _Scope(path, (*scope.lengths, eqn.params["length"]))
            kinds = scan_kinds(eqn, inputs)[0]
            self._enter(eqn, parts.body, kinds, scope, inside, lambda i: (i >= first_scanned,))
        elif eqn.primitive is REMAT:
            inside = _Scope(path, scope.lengths)
            self._enter(eqn, parts_of(inner_jaxpr(eqn)), inputs, scope, inside, lambda i: ())
        else:
            rule = next((r for r in rules.RULES if len(params) == 1 and r.covers(eqn, params[0])), None)
            taken = rule is not None and rule.takes(eqn, params[0])
            if rule is not None and taken and meets:
                use = scope.uses[eqn.invars[params[0]]]
                own = rule.layout(eqn, params[0])
                pooled = () if scope.lengths else rule.equal_cotangents(eqn, body)
                self.sites.append(
                    Site(path, eqn, params[0], use.source, use.stacked, scope.lengths, rule, own, pooled=pooled)
                )
            else:
                name = eqn.primitive.name if rule is None or taken else f"{rule.name} of {_types_of(eqn)}"
                for i in params:
                    self._use(eqn, eqn.invars[i], scope, name)

    def _enter(
        self,
        eqn: Eqn,
        body: JaxprParts,
        kinds: Sequence[Kind],
        scope: _Scope,
        inside: _Scope,
        sliced: Callable[[int], tuple[bool, ...]],
    ) -> None:
        inside.kinds = dict.fromkeys(body.constvars, NEITHER)
        for i, (atom, var, kind) in enumerate(zip(eqn.invars, body.invars, kinds, strict=True)):
            inside.kinds[var] = kind
            if scope.kind(atom) == PARAMS:
                if kind == PARAMS:
                    use = scope.uses[atom]
                    inside.uses[var] = _Use(use.source, use.stacked + sliced(i))
                else:
                    self._use(eqn, atom, scope, eqn.primitive.name)
        self._equations(body, inside)
        for atom in body.outvars:
            if inside.kind(atom) == PARAMS:
                source, where = inside.uses[atom].source, source_line(eqn)
                self.direct.append(DirectUse(source, eqn.primitive.name, where, atom.aval.size))

    def _use(self, eqn: Eqn, var: Var, scope: _Scope, name: str) -> None:
        size = max(v.aval.size for v in eqn.outvars) * math.prod(scope.lengths)
        self.direct.append(DirectUse(scope.uses[var].source, name, source_line(eqn), size))


def _types_of(eqn: Eqn) -> str:
    """The types of an equation's operands, each once: "complex64, float32"."""
    return ", ".join(dict.fromkeys(str(v.aval.dtype) for v in eqn.invars))


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
    sources: Sequence[Var], walk: _Walk, leaves: Sequence[Var], groups: Sequence[int], arithmetic: Arithmetic
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
    for use in uses:
        if use.size < max(sizes):
            why = f"no rule for {use.primitive} at {use.where}"
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
