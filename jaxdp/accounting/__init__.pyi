from ._adjacency import ADJACENCIES as ADJACENCIES, UNITS as UNITS
from ._calibration import (
    Budget as Budget,
    batch_size as batch_size,
    least_noise as least_noise,
    noise_multiplier as noise_multiplier,
    steps as steps,
)
from ._epsilon import (
    ACCOUNTANTS as ACCOUNTANTS,
    NoFigureError as NoFigureError,
    Spent as Spent,
    accountants_of as accountants_of,
    epsilon as epsilon,
    epsilon_at_interval as epsilon_at_interval,
    event_epsilon as event_epsilon,
    rounded_up as rounded_up,
)
from ._events import (
    event_from_dict as event_from_dict,
    event_to_dict as event_to_dict,
    gaussian_event as gaussian_event,
    poisson_event as poisson_event,
    truncated_poisson_event as truncated_poisson_event,
)
from ._grid import TooLargeError as TooLargeError
from ._ledger import Ledger as Ledger, LedgerEntry as LedgerEntry, Total as Total
from ._search import RandomSearch as RandomSearch
from ._statement import statement as statement
