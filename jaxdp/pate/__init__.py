"""PATE: an ensemble of teachers on disjoint shards votes under noise, and the votes are accounted.

`train_teachers` makes an ensemble; `vote_counts` votes of predictions; `laplace_noisy_max`, `gaussian_noisy_max`,
`confident_noisy_max` and `interactive_noisy_max` labels of votes; `train_student` learns the labels. `analyze` says what they
cost, by the mechanism and by the votes; `forecast` what to expect; `within_budget` where to stop. How votes become labels is a
value, an aggregator (`aggregators`, one a file): `aggregate` and all that is said of cost take any of them, also one of your own.
The bounds are in `_bounds`, their publication in `_sanitise`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
