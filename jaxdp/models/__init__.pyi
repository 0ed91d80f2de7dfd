from ._augmented import augmented as augmented
from ._classifier import (
    MODELS as MODELS,
    Classifier as Classifier,
    check_model as check_model,
    classifier as classifier,
    classifier_of as classifier_of,
    models_for as models_for,
    options_of as options_of,
    sees_pixels as sees_pixels,
    suits as suits,
)
from ._cnn import CNN as CNN
from ._dense import Dense as Dense, WeightNormDense as WeightNormDense
from ._distortion import distorted as distorted, erased as erased
from ._mlp import MLP as MLP
from ._patches import PatchConv as PatchConv
from ._scattering import (
    scattering as scattering,
    scattering_channels as scattering_channels,
    scattering_features as scattering_features,
)
from ._scattering_net import ScatteringNet as ScatteringNet
from ._strided import StridedCNN as StridedCNN
