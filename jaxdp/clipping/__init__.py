"""From a loss for one example to the sum of clipped per-example gradients.

`clipped_grad` is the way in. `_inputs`, `_shared` and `_static` check what it is given; `_reducer` walks the examples in
microbatches, to bound the memory; for each microbatch, `_per_example` computes gradients one example at a time under `vmap`
and `_clip` adds them up scaled, by factors that `rules` make of their norms. This plain method is the oracle against which the
fast one, `ghost`, is tested.

What other rooms build on, beside the calls that users make: `ClippedGrad.check_shared` and `Summing`, of which the private step
is made; `ClippedGrad.trace` and `ClippedGrad.sum_at_once`, by which a step checks itself; `rules.ClipRule`, which
is all that a run knows of its clip rule; and the checks named `check_...`.
"""

from ._clip import ClippedSum as ClippedSum, Clipping as Clipping, clip_and_sum as clip_and_sum
from ._clipped_grad import (
    ClippedGrad as ClippedGrad,
    ClippedGrads as ClippedGrads,
    clipped_grad as clipped_grad,
)
from ._draw_sums import Change as Change, DrawSums as DrawSums, Summing as Summing
from ._inputs import (
    check_batch as check_batch,
    check_loss as check_loss,
    check_mask as check_mask,
    check_params as check_params,
    example_keys as example_keys,
    takes_rng as takes_rng,
)
from ._per_example import (
    per_example_grads as per_example_grads,
    per_example_values_and_grads as per_example_values_and_grads,
)
from ._reducer import Examples as Examples
from ._shared import Shared as Shared
from .ghost import Explanation as Explanation, LeafReport as LeafReport
from .rules import (
    RULES as RULES,
    ClipRule as ClipRule,
    Flat as Flat,
    Groups as Groups,
    Normalised as Normalised,
    PerGroup as PerGroup,
    Quantile as Quantile,
    QuantileState as QuantileState,
    check_is_rule as check_is_rule,
    check_rule as check_rule,
)
