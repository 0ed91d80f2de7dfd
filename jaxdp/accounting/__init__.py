"""From what was run to what it cost: events, epsilon, calibration, ledger and statement, all through dp-accounting.

A run is described by a dp-accounting `DpEvent` (`_events`); an accountant turns it into (ε, δ) (`_epsilon`); calibration
asks the inverse question (`_calibration`); a `Ledger` adds up everything that touched the data; the statement says it in
plain English. dp-accounting takes seconds to import and is imported where it is used.
"""

from ._calibration import noise_multiplier as noise_multiplier
from ._epsilon import ACCOUNTANTS as ACCOUNTANTS, Spent as Spent, epsilon as epsilon, event_epsilon as event_epsilon
from ._events import event_from_dict as event_from_dict, event_to_dict as event_to_dict, poisson_event as poisson_event
from ._ledger import Ledger as Ledger, LedgerEntry as LedgerEntry
from ._statement import statement as statement
