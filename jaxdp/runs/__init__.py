"""A run's folder: what is in it, who may see it, and how it survives a crash. All commands use it; it imports none of them.

`_folder` has its files, `_lock` keeps other processes out, `_checkpoint` keeps what must survive (`_of_one` where there are
several processes), `_key_source` says where keys come from, `_devices` where arrays are, `_loop` runs epochs, `_pace` when to
save and to stop, `_report` and `_plots` show what came out, and `load_run` brings a finished model back.
"""

from ._checkpoint import Checkpoint as Checkpoint, CheckpointFolder as CheckpointFolder, save_model as save_model
from ._finished import FinishedRun as FinishedRun, load_run as load_run
from ._folder import PRIVATE as PRIVATE, RunFolder as RunFolder, as_written as as_written, new_path as new_path
