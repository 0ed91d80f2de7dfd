"""Clipped gradients at the price of ordinary ones, by reading the loss as a jaxpr.

In order: `_trace` turns the loss of one example into a jaxpr, from whose loops `_hoist` moves what depends on parameters alone,
as `_kinds` knows. `_uses` finds every use of every parameter, by `_views` of it, and the rule in `rules` that covers the
use; `_plan` groups those that may meet, and `_cost` decides where forming a gradient is cheaper than its norm by rows. `_tap`
runs the loss once forward and once backward over the batch and keeps, for each use, its other operands and the cotangent of
its output. `_norms` takes norms from the outer products that rules make of these, without forming a gradient; `_rounded` does
where factors are rounded to what a matrix unit reads, `_lookups` of tables on such devices, and `_transformed` of parameters that
are standardised before they are used, whose `_pull_back` works on columns. `_sum` adds up the clipped gradients as one ordinary
weight gradient with each example's cotangents scaled; `_gradient` has what both need of a single use. `_explain` tells the user.

References:
    Goodfellow, "Efficient per-example gradient computations", arXiv 1510.01799; Li et al., "Large language models can be
    strong differentially private learners", arXiv 2110.05679, section 4 (ghost clipping); Bu et al., "Differentially
    private optimization on large model at small cost", arXiv 2210.00038 (book-keeping).
"""

from ._explain import (
    Explanation as Explanation,
    LeafReport as LeafReport,
    check_covered as check_covered,
    explain as explain,
)
from ._sum import sum_by_ghost as sum_by_ghost
from ._trace import Traced as Traced, trace_loss as trace_loss
