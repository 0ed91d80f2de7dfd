"""The tutorials' models, in flax: an MLP with dropout, a small CNN whose convolutions are matrix products, and a dense network
for tables. Wavelet scattering, features of images that nothing learns, and a linear model on them. For PATE, a CNN without
pooling and random distortions.

Each maps one image, uint8 or float [height, width, channels], or one record's features, to logits. `MODELS` has them by name;
`classifier` makes of one what training and prediction need, for a task of `jaxdp.data`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
