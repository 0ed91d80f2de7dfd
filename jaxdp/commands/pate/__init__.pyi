from ._label import analyze_file as analyze_file, label as label
from ._options import AnalyzeOptions as AnalyzeOptions, LabelOptions as LabelOptions, PateOptions as PateOptions
from ._pipeline import pate_in_folder as pate_in_folder, run_pate as run_pate
from ._recipe import student_model as student_model, student_optimizer as student_optimizer
