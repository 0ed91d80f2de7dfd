"""PATE: an ensemble of teachers on disjoint shards votes under noise, and the votes are accounted.

`vote_counts` makes votes of predictions; `laplace_noisy_max`, `gaussian_noisy_max`, `confident_noisy_max` and
`interactive_noisy_max` make labels of votes; `analyze` says what that cost, by the mechanism and by the votes; `forecast` what
to expect. The bounds are in `_bounds`, their publication in `_sanitise`.
"""

from ._aggregation import (
    Labels as Labels,
    aggregate as aggregate,
    confident_noisy_max as confident_noisy_max,
    gaussian_noisy_max as gaussian_noisy_max,
    interactive_noisy_max as interactive_noisy_max,
    laplace_noisy_max as laplace_noisy_max,
)
from ._analysis import Report as Report, analyze as analyze, event_of as event_of
from ._forecast import Forecast as Forecast, forecast as forecast
from ._mechanisms import (
    ConfidentNoisyMax as ConfidentNoisyMax,
    GaussianNoisyMax as GaussianNoisyMax,
    InteractiveNoisyMax as InteractiveNoisyMax,
    LaplaceNoisyMax as LaplaceNoisyMax,
)
from ._perform_analysis import perform_analysis as perform_analysis
from ._sanitise import Sanitiser as Sanitiser
from ._votes import vote_counts as vote_counts
