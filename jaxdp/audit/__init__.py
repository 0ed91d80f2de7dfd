"""What did training leak at least? Attacks' scores of canaries, and lower bounds on ε from them.

A canary is an example that a fair coin put into the training data or kept out. An attack gives each a score, higher where it
thinks that the canary was in; whoever tossed the coins knows who was (`members`). From the two come how well the attack does
(`_attack`) and a lower bound on ε from one run (`_one_run`; by a trade-off function, `_f_dp`), whose numbers of guesses are
chosen without a look at the coins (`_thresholds`), or, where scores are Gaussian, by their means and variances (`_gaussian`); a
`report` has all of that in figures and in words. Of many runs counts are enough (`_counts`), and of a planted secret the losses
of others (`_exposure`).

Attacks: a model's outputs alone (`_scores`; of any callable, `_of_model`), or beside those of shadow models (`_lira`), trained
side by side on halves of the examples (`_shadows`). Canaries that are gradients, seen at every step, are the strongest
(`_gradients`).

A lower bound above the ε that was claimed shows, at its confidence, that the claim is false. A small one shows nothing: another
attack may do better.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
