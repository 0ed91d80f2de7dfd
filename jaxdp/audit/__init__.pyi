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
