"""From what was run to what it cost: events, epsilon, calibration, ledger and statement, all through dp-accounting.

A run is described by a dp-accounting `DpEvent` (`_events`); an accountant turns it into (ε, δ) (`_epsilon`) for two data sets
that differ as the adjacency says (`_adjacency`); calibration asks the inverse questions (`_calibration`); a search over
hyper-parameters is an event too (`_search`); a `Ledger` adds up everything that touched the data; the statement says it in
plain English. dp-accounting takes seconds to import and is imported where it is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
