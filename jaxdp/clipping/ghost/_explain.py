"""A plan as a table for the user: for each parameter, how its per-example gradient is dealt with and what that costs."""

from dataclasses import dataclass, replace

import jax

from ..._errors import UsageError
from ..._types import Params
from ._plan import Component, Plan

_FORMS = ("rows", "direct", "dropped", "formed", "materialised")  # in order of what they may cost


@dataclass(frozen=True)
class LeafReport:
    """One parameter.

    Attributes:
        name: its place in the tree, such as `['dense']['kernel']`.
        shape: of the parameter.
        sites: where it is used: the rules' names, or the primitives that no rule covers.
        how: "rows" (norm from the outer products' rows), "formed" (from each example's gradient, by a rule), "dropped" (likewise,
            but the gradient isn't kept for the sum), "direct" (by ordinary differentiation, where that takes no more memory than
            the use itself), "materialised" (likewise, where it takes more) or "unused". Of parts of a parameter that are used
            apart, the one that may cost most.
        operations: floating-point operations an example for the norm and the sum; those of the leaves that share its
            sites are counted with the first of them.
        floats: float32 values an example that are kept beside the activations.
        why: the reason in words.
    """

    name: str
    shape: tuple[int, ...]
    sites: tuple[str, ...]
    how: str
    operations: int
    floats: int
    why: str


@dataclass(frozen=True)
class Explanation:
    """The result of `grad_fn.explain(params, batch)`; prints as a table."""

    leaves: tuple[LeafReport, ...]

    def __str__(self) -> str:
        lines = [("parameter", "shape", "sites", "norm", "operations", "floats", "why")]
        for leaf in self.leaves:
            shape, sites = " × ".join(map(str, leaf.shape)) or "scalar", ", ".join(leaf.sites)
            lines.append((leaf.name, shape, sites, leaf.how, f"{leaf.operations:,}", f"{leaf.floats:,}", leaf.why))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*rows, "Operations and floats are per example."])

    __repr__ = __str__


def explain(plan: Plan, params: Params) -> Explanation:
    """The report on a plan for `params`."""
    names = [
        jax.tree_util.keystr(path) or "(the array itself)" for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]
    reports = [
        LeafReport(name, shape, (), "unused", 0, 0, "the loss doesn't depend on it: its gradient is zero")
        for name, shape in zip(names, plan.shapes, strict=True)
    ]
    for component in plan.components:
        for leaf in component.leaves:
            reports[leaf] = _joined(reports[leaf], _of_component(component, names, leaf, plan.shapes[leaf]))
    return Explanation(tuple(reports))


def check_covered(plan: Plan, params: Params) -> None:
    """Raise for a parameter whose gradient would have to be materialised for every example."""
    for leaf in explain(plan, params).leaves:
        if leaf.how == "materialised":
            raise UsageError(
                f"strict=True: params{leaf.name} of shape {leaf.shape} has to be materialised for every example: {leaf.why}. "
                "Use it through a product, a convolution or a lookup, or drop strict=True"
            )


def _of_component(component: Component, names: list[str], leaf: int, shape: tuple[int, ...]) -> LeafReport:
    first, choice = component.leaves[0], component.choice
    sites = tuple(site.rule.name for site in component.sites)
    sites += tuple(dict.fromkeys(use.primitive for use in component.direct))
    if leaf != first:
        return LeafReport(names[leaf], shape, sites, choice.form, 0, 0, f"together with {names[first]}")
    return LeafReport(names[leaf], shape, sites, choice.form, choice.operations, choice.kept, choice.why)


def _joined(report: LeafReport, more: LeafReport) -> LeafReport:
    """On a leaf of which there are parts; what costs most is told."""
    if report.how == "unused":
        return more
    worse = max(report, more, key=lambda part: _FORMS.index(part.how))
    operations, floats = report.operations + more.operations, report.floats + more.floats
    return replace(worse, sites=report.sites + more.sites, operations=operations, floats=floats)
