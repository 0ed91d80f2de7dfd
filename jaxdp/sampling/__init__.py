"""Who is in the batch.

An accountant assumes one way of drawing batches; these samplers draw exactly that way. `PoissonSampler` includes each
example on its own with the sampling rate, so that the size of a batch varies; shapes stay static by padding with a mask.
"""

from ._poisson import Draw as Draw, PaddedBatch as PaddedBatch, PoissonSampler as PoissonSampler
