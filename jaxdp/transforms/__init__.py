"""The optax surface: where a clipped sum becomes a private mean, and joins any optax optimizer.

`privatize` takes the sum that `clipped_grad` returns, with its sensitivity; `clip_and_privatize` takes per-example
gradients. `dp_sgd` and `dp_adam` chain the first with the optimizer of that name.
"""

from ._clip_and_privatize import clip_and_privatize as clip_and_privatize
from ._float32 import in_float32 as in_float32
from ._optimizers import dp_adam as dp_adam, dp_sgd as dp_sgd
from ._privatize import PrivatizeState as PrivatizeState, noise_scale as noise_scale, privatize as privatize
from ._suitable import (
    check_numbers as check_numbers,
    check_suitable as check_suitable,
    check_transform as check_transform,
)
