"""The tutorials' models, in flax: an MLP with dropout, a small CNN whose convolutions are matrix products, and a dense network
for tables. For PATE, a CNN without pooling and random distortions.

Each maps one image, uint8 or float [height, width, channels], or one record's features, to logits. `MODELS` has them by name.
"""

from collections.abc import Callable

import flax.linen as nn

from ._classifier import (
    Classifier as Classifier,
    classifier as classifier,
    classifier_of as classifier_of,
    evaluate as evaluate,
)
from ._cnn import CNN as CNN
from ._dense import Dense as Dense, WeightNormDense as WeightNormDense
from ._distortion import distorted as distorted, erased as erased
from ._mlp import MLP as MLP
from ._patches import PatchConv as PatchConv
from ._strided import StridedCNN as StridedCNN

MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": CNN, "mlp": MLP, "strided": StridedCNN, "dense": Dense}
