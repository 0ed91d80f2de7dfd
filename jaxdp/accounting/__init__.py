"""From what was run to what it cost: events, epsilon, calibration, ledger and statement, all through dp-accounting.

A run is described by a dp-accounting `DpEvent` (`_events`); an accountant turns it into (ε, δ) (`_epsilon`) for two data sets
that differ as the adjacency says (`_adjacency`); calibration asks the inverse questions (`_calibration`); a search over
hyper-parameters is an event too (`_search`); a `Ledger` adds up everything that touched the data; the statement says it in
plain English. dp-accounting takes seconds to import and is imported where it is used.
"""

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
