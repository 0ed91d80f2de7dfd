"""A run's folder: what is in it, who may see it, and how it survives a crash. All commands use it; it imports none of them.

`_folder` has its files, `_lock` keeps other processes out, `_checkpoint` keeps what must survive (`_of_one` where there are
several processes), `_key_source` says where keys come from, `_devices` where arrays are, `_loop` runs epochs, `_pace` when to
save and to stop, `_report` and `_plots` show what came out, and `load_run` brings a finished model back.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
