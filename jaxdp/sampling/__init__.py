"""Who is in the batch.

An accountant assumes one way of drawing batches; these samplers draw exactly that way, at static shapes by padding with a
mask. `PoissonSampler` includes each example on its own with the sampling rate, so that the size of a batch varies;
`TruncatedPoissonSampler` uses at most a fixed number of such a draw; `ShuffledSampler` goes through the data epoch by epoch,
which has no amplification by sampling.
"""

from ._batches import Draw as Draw, PaddedBatch as PaddedBatch, Sampler as Sampler, rows_at as rows_at
from ._poisson import PoissonSampler as PoissonSampler
from ._shuffled import ShuffledSampler as ShuffledSampler, steps_per_shuffled_epoch as steps_per_shuffled_epoch
from ._truncated import TruncatedPoissonSampler as TruncatedPoissonSampler
