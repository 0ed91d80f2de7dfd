from . import (
    accounting as accounting,
    audit as audit,
    clipping as clipping,
    data as data,
    dpsgd as dpsgd,
    mechanisms as mechanisms,
    models as models,
    noise as noise,
    pate as pate,
    reading as reading,
    runs as runs,
    sampling as sampling,
    transforms as transforms,
)
from ._errors import UsageError as UsageError
from .clipping import (
    ClippedGrads as ClippedGrads,
    Shared as Shared,
    clipped_grad as clipped_grad,
    per_example_grads as per_example_grads,
)
from .dpsgd import (
    DPSGD as DPSGD,
    Obstacle as Obstacle,
    PrivateStep as PrivateStep,
    StepMemory as StepMemory,
    StepMetrics as StepMetrics,
    TrainState as TrainState,
    Validation as Validation,
    largest_microbatch as largest_microbatch,
    step_memory as step_memory,
    validate as validate,
)
from .noise import key_from_entropy as key_from_entropy
from .runs import load_run as load_run
from .sampling import (
    PoissonSampler as PoissonSampler,
    ShuffledSampler as ShuffledSampler,
    TruncatedPoissonSampler as TruncatedPoissonSampler,
)
from .transforms import (
    PrivatizeState as PrivatizeState,
    clip_and_privatize as clip_and_privatize,
    dp_adam as dp_adam,
    dp_sgd as dp_sgd,
    in_float32 as in_float32,
    privatize as privatize,
)
