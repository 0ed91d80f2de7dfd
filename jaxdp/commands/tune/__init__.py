"""`jaxdp tune`: a random search over learning rate, clip norm and batch size, of which the statement says what it cost.

`TuneOptions` are those of `jaxdp train` with what is searched. `_price` has the noise of each run and the event of the search,
`_trials` what is drawn before the first run, `_score` compares the models, and `_tune` goes from there to the best one's folder.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
