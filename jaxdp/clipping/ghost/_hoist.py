"""Move what depends on parameters alone out of loops, so that a body uses a parameter only where it meets an example.

Nested jits are inlined. In the body of a scan or a remat, equations on parameters alone (a cast, a transposition, weight
standardisation) are computed before it: once where they use the body's constants, for all steps together where they use
scanned slices. A carry that holds parameters and never changes becomes a constant. The result computes the same values.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from ...jaxprs import evaluate
from ...jaxprs._jaxpr import (
    INLINED,
    REMAT,
    SCAN,
    Eqn,
    Jaxpr,
    JaxprParts,
    Literal,
    Var,
    bind,
    has_its_own_gradient,
    in_context_of,
    inner_jaxpr,
    parts_of,
    rebuild_remat,
    rebuild_scan,
    scan_parts,
    trace,
)
from .._draws import draw_by_the_first_key
from ._kinds import EXAMPLE, NEITHER, PARAMS, Kind, kinds_of, output_kinds, scan_kinds


def hoist(jaxpr: Jaxpr, kinds: Sequence[Kind]) -> Jaxpr:
    """`jaxpr` with its jits inlined and its parameter-only work moved out of loops.

    Args:
        jaxpr: closed, over inputs of `kinds`.
        kinds: what each input depends on.

    Returns:
        A closed jaxpr over the same inputs, with the same outputs.
    """
    whole = parts_of(jaxpr)
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in whole.invars]
    return trace(lambda *args: _run(whole, args, kinds), *shapes)[0]


def _run(jaxpr: JaxprParts, args: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    known = kinds_of(jaxpr, kinds)
    return evaluate(jaxpr, args, lambda eqn, values: _rewrite(eqn, values, [known.of(v) for v in eqn.invars]))


def _rewrite(eqn: Eqn, args: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    if eqn.primitive in INLINED:
        return _run(parts_of(inner_jaxpr(eqn)), args, kinds)
    meets = any(kind & PARAMS for kind in kinds) and any(kind & EXAMPLE for kind in kinds)
    if eqn.primitive is SCAN and meets:
        return _scan(eqn, args, kinds)
    if eqn.primitive is REMAT and meets:
        return _remat(eqn, args, kinds)
    return bind(eqn, args)


def _remat(eqn: Eqn, args: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    body = parts_of(hoist(inner_jaxpr(eqn), kinds))
    work = _HoistableWork(body, kinds)
    moved = work.values(work.moved, args)

    def rest(args: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
        return work.rest(args, dict(zip(work.moved, moved, strict=True)))

    with in_context_of(eqn):
        return list(rebuild_remat(eqn, rest)(list(args), moved))


def _scan(eqn: Eqn, args: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    parts = scan_parts(eqn)
    carries = range(parts.num_consts, parts.num_consts + parts.num_carry)
    fixed = [
        i for i in carries if kinds[i] == PARAMS and parts.body.outvars[i - parts.num_consts] is parts.body.invars[i]
    ]
    inside = list(scan_kinds(eqn, [NEITHER if i in fixed else kind for i, kind in enumerate(kinds)])[0])
    for i in fixed:
        inside[i] = PARAMS
    body = parts_of(hoist(eqn.params["jaxpr"], inside))

    consts = [i for i in range(len(args)) if i < carries.start or i in fixed]
    carried = [i for i in carries if i not in fixed]
    scanned = range(carries.stop, len(args))
    work = _HoistableWork(body, [inside[i] if i in consts or i in scanned else EXAMPLE for i in range(len(args))])
    by_step = [v for v in work.moved if work.depends(v, [body.invars[i] for i in scanned])]
    once = [v for v in work.moved if v not in by_step]
    with in_context_of(eqn):
        once_values = work.values(once, args)

        def step_values(slices: Sequence[Any]) -> list[Any]:
            filled = list(args)
            filled[scanned.start :] = slices
            return work.values(by_step, filled)

        for_steps = functools.partial(jax.lax.map, step_values) if work.draws else jax.vmap(step_values)
        step_stacks = for_steps([args[i] for i in scanned]) if by_step else []

        def step(carry: Sequence[Any], xs: tuple[Sequence[Any], Sequence[Any]]) -> tuple[Any, Any]:
            slices, moved = xs
            filled = list(args)
            for i, value in zip([*carried, *scanned], [*carry, *slices], strict=True):
                filled[i] = value
            ready = dict(zip(once, once_values, strict=True)) | dict(zip(by_step, moved, strict=True))
            outs = work.rest(filled, ready)
            return [outs[i - carries.start] for i in carried], outs[parts.num_carry :]

        init = [args[i] for i in carried]
        ends, stacks = rebuild_scan(eqn, step, init, ([args[i] for i in scanned], step_stacks))
    final = dict(zip(carried, ends, strict=True))
    return [final.get(i, args[i]) for i in carries] + list(stacks)


class _HoistableWork:
    """The part of a body that depends on nothing but parameters, and on what is the same for all examples.

    Attributes:
        moved: the variables that the rest of the body needs from that part.
    """

    def __init__(self, body: JaxprParts, inputs: Sequence[Kind]) -> None:
        self._body = body
        kind: dict[Var, Kind] = dict.fromkeys(body.constvars, NEITHER)
        kind.update(zip(body.invars, inputs, strict=True))
        of = lambda atom: NEITHER if isinstance(atom, Literal) else kind[atom]
        self._eqns: list[Eqn] = []
        movable: set[Var] = set()
        for eqn in body.eqns:
            outs = output_kinds(eqn, [of(v) for v in eqn.invars])
            if has_its_own_gradient(eqn):  # which needn't be linear: what it makes of each step's is added up
                outs = [EXAMPLE] * len(outs)
            if not any(k & EXAMPLE for k in outs) and not eqn.effects:
                self._eqns.append(eqn)
                movable.update(eqn.outvars if any(k & PARAMS for k in outs) else ())
            kind.update(zip(eqn.outvars, outs, strict=True))
        staying = [eqn for eqn in body.eqns if not any(v in movable for v in eqn.outvars)]
        used = [v for eqn in staying for v in eqn.invars] + list(body.outvars)
        self.moved: list[Var] = list(dict.fromkeys(v for v in used if not isinstance(v, Literal) and v in movable))
        self._staying = staying

    @property
    def draws(self) -> bool:
        """Whether some of it draws by keys of which, vectorised, the first would count for all."""
        return draw_by_the_first_key(self._eqns)

    def depends(self, var: Var, sources: Sequence[Var]) -> bool:
        """Whether a moved variable depends on any of `sources`."""
        reached = set(sources)
        for eqn in self._eqns:
            if any(not isinstance(v, Literal) and v in reached for v in eqn.invars):
                reached.update(eqn.outvars)
        return var in reached

    def values(self, wanted: Sequence[Var], args: Sequence[Any]) -> list[Any]:
        """The values of moved variables; of `args`, only what they depend on is read."""
        return evaluate(self._body, args, eqns=self._eqns, wanted=wanted)

    def rest(self, args: Sequence[Any], ready: dict[Var, Any]) -> list[Any]:
        """The body's outputs, given the moved variables."""
        return evaluate(self._body, args, eqns=self._staying, wanted=self._body.outvars, known=ready)
