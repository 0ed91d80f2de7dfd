"""`jaxdp train`: options in, a folder with model, metrics, plots, checkpoints and privacy statement out.

`TrainOptions` is what a user asks for, a recipe (`_recipe`) has what they leave open, and a `_plan` every number. `_problem` is
a data set with a model for it (`_tables` of CSV files), `_optimizer` takes the gradients, `_config` says what draws depend on,
`_room` what memory a step may take, `_train` begins a run or goes on with one, on one process or several, `_job` is its course,
`_results` writes what is left of it, and `_folds` trains one model for each part of the records.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
