"""jaxdp: differentially private deep learning in JAX.

A loss for one example goes in; the sum of clipped per-example gradients, noise inside an optax transform, batches drawn as
the accountant assumes, and an epsilon that is true of the run come out.

    run = jaxdp.DPSGD(num_examples=60_000, expected_batch_size=256, steps=3600, clip_norm=1.0, noise_multiplier=1.1)
    step = run.make_step(loss_fn, optax.sgd(0.5))
    state = step.init(params, jaxdp.key_from_entropy())
    for _ in range(run.steps):
        state, metrics = step(state, data)
    print(run.statement(delta=1e-5))
"""

from . import (
    _interrupts as _interrupts,  # before all that takes seconds to import
    accounting as accounting,
    clipping as clipping,
    data as data,
    mechanisms as mechanisms,
    pate as pate,
)
from ._errors import UsageError as UsageError
from ._memory import StepMemory as StepMemory, largest_microbatch as largest_microbatch, step_memory as step_memory
from ._run import DPSGD as DPSGD
from ._step import PrivateStep as PrivateStep, StepMetrics as StepMetrics, TrainState as TrainState
from ._validate import Obstacle as Obstacle, Validation as Validation, validate as validate
from .clipping import (
    ClippedGrads as ClippedGrads,
    Shared as Shared,
    clipped_grad as clipped_grad,
    per_example_grads as per_example_grads,
)
from .noise import key_from_entropy as key_from_entropy
from .sampling import (
    PoissonSampler as PoissonSampler,
    ShuffledSampler as ShuffledSampler,
    TruncatedPoissonSampler as TruncatedPoissonSampler,
)
from .train import load_run as load_run
from .transforms import (
    PrivatizeState as PrivatizeState,
    clip_and_privatize as clip_and_privatize,
    dp_adam as dp_adam,
    dp_sgd as dp_sgd,
    in_float32 as in_float32,
    privatize as privatize,
)
