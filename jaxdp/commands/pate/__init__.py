"""`jaxdp pate`: the whole of PATE in a folder (`_pipeline`), and its middle for others' predictions (`_label`).

`_coordinates` are what teachers and student see, `_teach` trains the teachers by `_recipe`, in one process or several;
`_release` makes labels and says who may see what; `_keys` and `_predictions` read and write files; `_plots` and `_report` show.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
