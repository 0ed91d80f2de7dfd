"""`jaxdp pate`: the whole of PATE in a folder (`_pipeline`), and its middle for others' predictions (`_label`).

`_coordinates` are what teachers and student see, `_teach` trains the teachers by `_recipe`, in one process or several;
`_release` makes labels and says who may see what; `_keys` and `_predictions` read and write files; `_plots` and `_report` show.
"""

from ._label import analyze_file as analyze_file, label as label
from ._options import AnalyzeOptions as AnalyzeOptions, LabelOptions as LabelOptions, PateOptions as PateOptions
from ._pipeline import pate_in_folder as pate_in_folder, run_pate as run_pate
from ._recipe import student_model as student_model, student_optimizer as student_optimizer
