from ._folds import Folds as Folds, train_folds as train_folds, train_or_folds as train_or_folds
from ._options import TrainOptions as TrainOptions
from ._train import train as train
