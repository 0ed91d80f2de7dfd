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

from ._attack import attack_auroc as attack_auroc, tpr_at_fpr as tpr_at_fpr
from ._counts import epsilon_clopper_pearson as epsilon_clopper_pearson
from ._exposure import exposure_by_extrapolation as exposure_by_extrapolation, exposure_by_rank as exposure_by_rank
from ._f_dp import epsilon_one_run_f_dp as epsilon_one_run_f_dp
from ._gaussian import epsilon_one_run_gaussian as epsilon_one_run_gaussian
from ._gradients import GradientCanaries as GradientCanaries, gradient_canaries as gradient_canaries
from ._lira import lira_scores as lira_scores
from ._of_model import scores_of as scores_of
from ._one_run import (
    epsilon_one_run as epsilon_one_run,
    epsilon_one_run_from_counts as epsilon_one_run_from_counts,
    one_run_p_value as one_run_p_value,
)
from ._report import Report as Report, report as report
from ._scores import (
    confidence as confidence,
    entropy_scores as entropy_scores,
    loss_scores as loss_scores,
    modified_entropy_scores as modified_entropy_scores,
)
from ._shadows import Shadows as Shadows, train_shadows as train_shadows
from ._thresholds import Bonferroni as Bonferroni, Corners as Corners, Split as Split
