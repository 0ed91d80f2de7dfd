"""Who is in the batch.

An accountant assumes one way of drawing batches; a `Sampling` is that way as a frozen value, with its sampler, its event and its
words: `Poisson()` includes each example on its own with the sampling rate, so that the size of a batch varies;
`TruncatedPoisson(size)` uses at most a fixed number of such a draw; `Shuffled()` goes through the data epoch by epoch, which has
no amplification by sampling. The samplers draw at static shapes by padding with a mask.
"""

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
