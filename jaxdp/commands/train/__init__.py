"""`jaxdp train`: options in, a folder with model, metrics, plots, checkpoints and privacy statement out.

`TrainOptions` is what a user asks for, a recipe (`_recipe`) has what they leave open, and a `_plan` every number. `_problem` is
a data set with a model for it (`_tables` of CSV files), `_optimizer` takes the gradients, `_config` says what draws depend on,
`_train` goes from there to a finished run, on one process or several, `_results` writes what is left of it, and `_folds` trains
one model for each part of the records.
"""

from ...runs import FinishedRun as FinishedRun, load_run as load_run
from ._folds import Folds as Folds, train_folds as train_folds, train_or_folds as train_or_folds
from ._options import TrainOptions as TrainOptions
from ._train import train as train
