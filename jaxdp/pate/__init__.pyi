from . import aggregators as aggregators
from ._aggregation import (
    aggregate as aggregate,
    confident_noisy_max as confident_noisy_max,
    gaussian_noisy_max as gaussian_noisy_max,
    interactive_noisy_max as interactive_noisy_max,
    laplace_noisy_max as laplace_noisy_max,
)
from ._analysis import Report as Report, analyze as analyze, event_of as event_of
from ._budget import within_budget as within_budget
from ._forecast import Forecast as Forecast, forecast as forecast
from ._graph import graph_coordinates as graph_coordinates, spread_labels as spread_labels
from ._perform_analysis import perform_analysis as perform_analysis
from ._sanitise import Sanitiser as Sanitiser
from ._student import StudentStep as StudentStep, train_student as train_student
from ._teachers import Teachers as Teachers, train_teachers as train_teachers
from ._votes import vote_counts as vote_counts
from .aggregators import (
    Aggregator as Aggregator,
    ConfidentNoisyMax as ConfidentNoisyMax,
    GaussianNoisyMax as GaussianNoisyMax,
    InteractiveNoisyMax as InteractiveNoisyMax,
    Labels as Labels,
    LaplaceNoisyMax as LaplaceNoisyMax,
)
