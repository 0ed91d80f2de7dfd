"""From a loss for one example to the sum of clipped per-example gradients.

`clipped_grad` is the way in. `_per_example` computes gradients one example at a time under `vmap`, `_rules` makes factors of
their norms, `_clip` adds them up scaled, and `_microbatches` walks a batch in pieces to bound the memory. This plain method
is the oracle against which the fast one, `ghost`, is tested.
"""

from ._clip import ClippedSum as ClippedSum, clip_and_sum as clip_and_sum
from ._clipped_grad import ClippedGrad as ClippedGrad, ClippedGrads as ClippedGrads, clipped_grad as clipped_grad
from ._inputs import (
    check_batch as check_batch,
    check_loss as check_loss,
    check_mask as check_mask,
    check_params as check_params,
    example_keys as example_keys,
    takes_rng as takes_rng,
)
from ._per_example import per_example_grads as per_example_grads
from ._rules import (
    Clipping as Clipping,
    ClipRule as ClipRule,
    Flat as Flat,
    Normalised as Normalised,
    PerGroup as PerGroup,
    Quantile as Quantile,
    QuantileState as QuantileState,
    check_rule as check_rule,
    excess_within as excess_within,
)
from ._shared import Shared as Shared
from ._static import closed as closed
from .ghost import Explanation as Explanation, LeafReport as LeafReport
