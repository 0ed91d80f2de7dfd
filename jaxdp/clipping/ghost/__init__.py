"""Clipped gradients at the price of ordinary ones, by reading the loss as a jaxpr.

`_traced` turns the loss of one example into a jaxpr, `_hoist` moves what depends on parameters alone out of its loops, and
`_plan` finds every use of every parameter. `_tap` runs it once forward and once backward over the batch and keeps, for each
use, its other operand and the cotangent of its output. `_rows` takes norms from these factors without forming a gradient
(`_dot`, `_conv` and `_embedding` are the rules that give them, `_cost` decides where forming is cheaper), and `_sum` adds up
the clipped gradients as one ordinary weight gradient with each example's cotangents scaled. `_explain` tells the user.

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
from ._sum import clipped_sum as clipped_sum
from ._traced import Traced as Traced, traced as traced
