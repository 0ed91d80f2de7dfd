"""The ways in which votes become labels, each a frozen value that knows its noise, its cost and its words; one a file.

`_contract` says what an aggregator is and what the rest of `jaxdp.pate` asks of one: nothing there, nor in the command line,
knows which ones there are. An aggregator of your own is a class with these methods, handed to `jaxdp.pate.aggregate`,
`analyze`, `forecast` and `within_budget` as the ones here are. `_noisy_max` has the draw that all of them make, `_threshold`
the check that two of them make before it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
