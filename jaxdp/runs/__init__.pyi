from ._checkpoint import Checkpoint as Checkpoint, CheckpointFolder as CheckpointFolder, save_model as save_model
from ._finished import FinishedRun as FinishedRun, load_run as load_run
from ._folder import PRIVATE as PRIVATE, RunFolder as RunFolder, as_written as as_written, new_path as new_path
