"""Where each parameter is used: every use is of a value computed from parameters alone.

It either has a rule (a *site*) or is *direct*. Found in one walk over the loss, into loops, from shapes alone.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax

from ...jaxprs import constant_value
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
from . import rules
from ._kinds import BOTH, EXAMPLE, NEITHER, PARAMS, Kind, output_kinds, scan_kinds
from ._views import Origin, origin_of_leaf, origins_of_outputs
from .rules import Layout, Rule

Path = tuple[int, ...]


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

    def first_of(self, cotangents: jax.Array) -> jax.Array:
        """Of a batch's cotangents of its output, [B, ...], the first along axes along which all are the same."""
        return cotangents[tuple(slice(1) if i - 1 in self.pooled else slice(None) for i in range(cotangents.ndim))]

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


class Uses:
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
