"""Where each parameter is used, and how the norm of its per-example gradient will be computed.

The plan is made from shapes alone. Every use of a parameter either has a rule (a *site*) or is *direct*: then the leaf's
gradient is formed for every example by ordinary differentiation. A leaf with any direct use is direct as a whole, and so
are the leaves that are mixed with it before they are used; thus no use is forgotten. The other leaves fall into
components, connected by the values into which they are mixed; most are a single leaf.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from ...jaxprs._jaxpr import (
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
from ._views import Origin, origin_of_leaf, origin_of_output
from .rules import Layout, Rule
from .rules._rule import Square

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
        pooled: whether the cotangents of all rows are the same, since nothing but the sum of the outputs is used.
        rounded: whether the factors of its outer products are rounded to what a matrix unit reads.
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
    pooled: bool = False
    rounded: bool = False

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
    """A use without a rule: what, where, and whether its per-example gradient is larger than what it computes."""

    primitive: str
    where: str
    cheap: bool


@dataclass(frozen=True)
class Component:
    """Leaves that are used through the same values, all of whose uses are sites.

    Attributes:
        leaves: their positions.
        sites: the uses.
        rearranged: whether the values that are used hold the leaves' entries and nothing else.
        choice: how the norm is computed, and why.
    """

    leaves: tuple[int, ...]
    sites: tuple[Site, ...]
    rearranged: bool
    choice: Choice

    @property
    def sources(self) -> tuple[Var, ...]:
        """The parameter-only values that are used."""
        return tuple(dict.fromkeys(site.source for site in self.sites))

    @property
    def rounded_paths(self) -> list[Path]:
        """Of the uses whose factors are rounded."""
        return [site.path for site in self.sites if site.rounded]

    @property
    def is_single_row(self) -> bool:
        """Whether factors are rounded and the gradient is one outer product, or one for each matrix of the loops that stack."""
        first = self.sites[0]
        by_rows = first.rounded and len(self.sites) == 1 and self.choice.form == "rows"
        return by_rows and first.layout.rows == first.own.stack == 1

    @property
    def square(self) -> Square | None:
        """The own way to the squared norm of the rule that all uses share, if there is one and they lie the same way round."""
        return None if any(site.swap for site in self.sites) else _shared_square(self.sites)

    @property
    def is_one_rearrangement(self) -> bool:
        """Whether all uses are of one value, which holds the leaves' entries and nothing else."""
        return self.rearranged and len(self.sources) == 1


@dataclass(frozen=True)
class Plan:
    """How each leaf's per-example gradient is dealt with.

    Attributes:
        jaxpr: the loss, its parameter-only work hoisted.
        components: the leaves that rules cover.
        direct: for every leaf differentiated as it is, its uses without a rule (none where it is mixed with one that has).
        unused: leaves on which the loss doesn't depend.
        shapes: of all leaves.
        activations: bytes that one example needs, about.
        arithmetic: of norms and sums.
    """

    jaxpr: JaxprParts
    components: tuple[Component, ...]
    direct: dict[int, tuple[DirectUse, ...]]
    unused: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
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
    shapes = tuple(tuple(v.aval.shape) for v, kind in zip(jaxpr.invars, kinds, strict=True) if kind == PARAMS)
    walk = _Walk(jaxpr, kinds)
    direct = dict(walk.direct)
    components = []
    for leaves in _connected([walk.origins[site.source].leaves for site in walk.sites]):
        sites = tuple(site for site in walk.sites if walk.origins[site.source].leaves <= leaves)
        if leaves & direct.keys():
            direct |= {leaf: direct.get(leaf, []) for leaf in leaves}
        else:
            together = len({groups[leaf] for leaf in leaves}) == 1
            components.append(_component(leaves, sites, walk.origins, shapes, together, arithmetic))
    used = set(direct) | {leaf for component in components for leaf in component.leaves}
    unused = tuple(leaf for leaf in range(len(shapes)) if leaf not in used)
    return Plan(
        jaxpr=jaxpr,
        components=tuple(components),
        direct={leaf: tuple(uses) for leaf, uses in sorted(direct.items())},
        unused=unused,
        shapes=shapes,
        activations=activations(jaxpr, kinds) + 4 * sum(component.choice.kept for component in components),
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
        self.direct: dict[int, list[DirectUse]] = {}
        self.origins: dict[Var, Origin] = {}
        self._leaf_sizes: list[int] = []
        scope = _Scope((), ())
        scope.kinds = dict.fromkeys(jaxpr.constvars, NEITHER) | dict(zip(jaxpr.invars, kinds, strict=True))
        for index, var in enumerate(v for v in jaxpr.invars if scope.kinds[v] == PARAMS):
            self.origins[var] = origin_of_leaf(index, tuple(var.aval.shape))
            self._leaf_sizes.append(var.aval.size)
            scope.uses[var] = _Use(var, ())
        self._equations(jaxpr, scope)
        loss = jaxpr.outvars[0]
        if scope.kind(loss) == PARAMS:
            self._use_directly(scope.uses[loss].source, "the loss itself", "", 1)

    def _equations(self, jaxpr: JaxprParts, scope: _Scope) -> None:
        for number, eqn in enumerate(jaxpr.eqns):
            inputs = [scope.kind(v) for v in eqn.invars]
            meets = any(kind & EXAMPLE for kind in inputs)
            outs = output_kinds(eqn, inputs)
            params = [i for i, kind in enumerate(inputs) if kind == PARAMS]
            if params and not meets and not scope.path:
                origins = [self.origins.get(v) if scope.kind(v) == PARAMS else None for v in eqn.invars]
                for v in eqn.outvars:
                    self.origins[v] = origin_of_output(eqn, origins)
                    scope.uses[v] = _Use(v, ())
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
        if eqn.primitive is SCAN:
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
            if rule is not None and taken and any(kind & EXAMPLE for kind in inputs):
                use = scope.uses[eqn.invars[params[0]]]
                own = rule.layout(eqn, params[0])
                pooled = not scope.lengths and rule.equal_cotangents(eqn, body)
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
                self._use_directly(inside.uses[atom].source, eqn.primitive.name, source_line(eqn), atom.aval.size)

    def _use(self, eqn: Eqn, var: Var, scope: _Scope, name: str) -> None:
        size = max(v.aval.size for v in eqn.outvars) * math.prod(scope.lengths)
        self._use_directly(scope.uses[var].source, name, source_line(eqn), size)

    def _use_directly(self, source: Var, primitive: str, where: str, size: int) -> None:
        for leaf in self.origins[source].leaves:
            self.direct.setdefault(leaf, []).append(DirectUse(primitive, where, self._leaf_sizes[leaf] <= size))


def _types_of(eqn: Eqn) -> str:
    """The types of an equation's operands, each once: "complex64, float32"."""
    return ", ".join(dict.fromkeys(str(v.aval.dtype) for v in eqn.invars))


def _connected(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The unions of sets that overlap, directly or through others."""
    groups: list[frozenset[int]] = []
    for members in sets:
        touching = [group for group in groups if group & members]
        groups = [group for group in groups if not group & members]
        groups.append(members.union(*touching))
    return groups


def _component(
    leaves: frozenset[int],
    sites: tuple[Site, ...],
    origins: dict[Var, Origin],
    shapes: Sequence[tuple[int, ...]],
    together: bool,
    arithmetic: Arithmetic,
) -> Component:
    rearranged = all(origins[site.source].isometric for site in sites)
    if arithmetic.rounds and all(map(_may_be_rounded, sites)):
        sites = tuple(replace(site, rounded=True) for site in sites)
    aligned = _align(sites, origins) if rearranged else None
    entries = sum(math.prod(shapes[leaf]) for leaf in leaves)
    layouts = [site.layout for site in sites]
    found = {"aligned": aligned is not None, "together": together}
    if sites[0].rounded:
        one_value = rearranged and len({site.source for site in sites}) == 1
        choice = choose_for_matrix_unit(layouts, entries, **found, one_value=one_value)
    else:
        choice = choose(layouts, entries, **found, own_norm=_shared_square(sites) is not None)
    return Component(tuple(sorted(leaves)), aligned or sites, rearranged, choice)


def _may_be_rounded(site: Site) -> bool:
    """Whether a matrix unit multiplies in its own precision, and the user has asked for no other."""
    plain = site.eqn.params.get("precision", "none") in (
        None,
        jax.lax.Precision.DEFAULT,
        (jax.lax.Precision.DEFAULT,) * 2,
    )
    types = [v.aval.dtype for v in (*site.eqn.invars, *site.eqn.outvars)]
    return site.rule.repeats is not None and plain and all(t in _ROUNDED for t in types)


def _shared_square(sites: Sequence[Site]) -> Square | None:
    squares = {site.rule.square for site in sites}
    return squares.pop() if len(squares) == 1 else None


def _align(sites: tuple[Site, ...], origins: dict[Var, Origin]) -> tuple[Site, ...] | None:
    """The sites with their layouts on the same axes of the same base, or None where they can't be brought there."""
    if len(sites) == 1:
        return sites
    views = [origins[site.source].view for site in sites]
    if all(view is not None for view in views):
        bases = {(view.leaf, view.base) for view in views if view is not None}
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
