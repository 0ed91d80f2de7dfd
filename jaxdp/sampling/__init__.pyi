from ._batches import Draw as Draw, PaddedBatch as PaddedBatch, Sampler as Sampler, rows_at as rows_at
from ._names import (
    NAMES as NAMES,
    SAMPLINGS as SAMPLINGS,
    cuts as cuts,
    kind_of as kind_of,
    resolve as resolve,
    short_name as short_name,
    words_of_batch_size as words_of_batch_size,
)
from ._poisson import Poisson as Poisson, PoissonSampler as PoissonSampler
from ._sampling import SampledRun as SampledRun, Sampling as Sampling, gaussian_event_of as gaussian_event_of
from ._shuffled import Shuffled as Shuffled, ShuffledSampler as ShuffledSampler
from ._truncated import TruncatedPoisson as TruncatedPoisson, TruncatedPoissonSampler as TruncatedPoissonSampler
