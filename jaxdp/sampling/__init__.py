"""Who is in the batch.

An accountant assumes one way of drawing batches; a `Sampling` is that way as a frozen value, with its sampler, its event and its
words: `Poisson()` includes each example on its own with the sampling rate, so that the size of a batch varies;
`TruncatedPoisson(size)` uses at most a fixed number of such a draw; `Shuffled()` goes through the data epoch by epoch, which has
no amplification by sampling. The samplers draw at static shapes by padding with a mask.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
