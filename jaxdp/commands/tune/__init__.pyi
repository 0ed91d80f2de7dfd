from ._options import TuneOptions as TuneOptions
from ._tune import tune as tune
