"""Kinds of values in the loss, by what they depend on: parameters, the example, both or neither.

A value that depends on parameters alone is the same for all examples; it is computed once a batch. Where such a value
meets one that depends on the example, per-example gradients begin.
"""

from collections.abc import Sequence

from ...jaxprs._jaxpr import INLINED, REMAT, SCAN, Eqn, JaxprParts, Literal, Var, inner_jaxpr, parts_of, scan_parts

Kind = int
NEITHER, PARAMS, EXAMPLE, BOTH = 0, 1, 2, 3  # a set of two bits: joining is `|`


class Kinds(dict[Var, Kind]):
    """The kind of each variable of a jaxpr."""

    def of(self, atom: Var | Literal) -> Kind:
        """The kind of an operand; literals depend on nothing."""
        return NEITHER if isinstance(atom, Literal) else self[atom]


def kinds_of(jaxpr: JaxprParts, inputs: Sequence[Kind]) -> Kinds:
    """The kind of each variable, given those of the inputs; constants depend on neither."""
    kinds = Kinds(dict.fromkeys(jaxpr.constvars, NEITHER))
    kinds.update(zip(jaxpr.invars, inputs, strict=True))
    for eqn in jaxpr.eqns:
        kinds.update(zip(eqn.outvars, output_kinds(eqn, [kinds.of(v) for v in eqn.invars]), strict=True))
    return kinds


def output_kinds(eqn: Eqn, inputs: Sequence[Kind]) -> list[Kind]:
    """The kinds of an equation's outputs, looking into calls and loops.

    What isn't inlined runs as one: where it reads the example, none of its outputs can be had without it, whatever that is
    computed from.
    """
    read = NEITHER
    for kind in inputs:
        read |= kind
    if eqn.primitive is SCAN:
        return [kind | read & EXAMPLE for kind in scan_kinds(eqn, inputs)[1]]
    if eqn.primitive is REMAT or eqn.primitive in INLINED:
        inner = parts_of(inner_jaxpr(eqn))
        kinds, here = kinds_of(inner, inputs), read & EXAMPLE if eqn.primitive is REMAT else NEITHER
        return [kinds.of(v) | here for v in inner.outvars]
    return [read] * len(eqn.outvars)


def scan_kinds(eqn: Eqn, inputs: Sequence[Kind]) -> tuple[list[Kind], list[Kind]]:
    """The kinds of a scan's body inputs and of its outputs: a carry depends on all that any step puts into it.

    Where the example enters a scan at all, a carry of parameters, from its start or from a step on, counts as depending on
    both: it is not the same value at each step, so that nothing can be said of it once for all steps.
    """
    parts = scan_parts(eqn)
    carries = slice(parts.num_consts, parts.num_consts + parts.num_carry)
    meets = any(kind & EXAMPLE for kind in inputs)
    inside, joined = list(inputs), list(inputs[carries])
    while True:
        inside[carries] = [BOTH if meets and kind == PARAMS else kind for kind in joined]
        kinds = kinds_of(parts.body, inside)
        outputs = [kinds.of(v) for v in parts.body.outvars]
        joined = [a | b for a, b in zip(inside[carries], outputs[: parts.num_carry], strict=True)]
        if joined == inside[carries]:
            return inside, joined + outputs[parts.num_carry :]
