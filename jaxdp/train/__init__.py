"""`jaxdp train` as a library: options in, a folder with model, metrics, plots, checkpoints and privacy statement out.

`TrainOptions` is what a user asks for, `_recipe` fills in what they leave open, `_problem` makes a loss and an accuracy of
a data set and a model (`_tables` of CSV files), `_optimizer` what takes the gradients, `_loop` runs epochs, `_folds` trains one
model for each part of the records, `_checkpoint` and `_folder` keep what must survive a crash and who may see it, `_lock` keeps
other processes out, `_report` and `_plots` show what came out, and `load_run` brings a finished model back.
"""

from ._finished import FinishedRun as FinishedRun, load_run as load_run
from ._folds import Folds as Folds, train_folds as train_folds
from ._options import TrainOptions as TrainOptions
from ._train import train as train
