"""TF Privacy's LiRA on given confidences, and its threshold attack on given scores: areas and seconds, as one line of JSON.

    python attacks_tf_privacy.py given.npz

The file has `target`, `shadows`, `members` and `truth` as `jaxdp.audit.lira_scores` takes them, and an array of scores an attack.
"""

import json
import sys
import time

import numpy as np
from tensorflow_privacy.privacy.privacy_tests.membership_inference_attack import advanced_mia
from tensorflow_privacy.privacy.privacy_tests.membership_inference_attack.data_structures import (
    AttackInputData,
    AttackType,
)
from tensorflow_privacy.privacy.privacy_tests.membership_inference_attack.membership_inference_attack import (
    run_attacks,
)

given = dict(np.load(sys.argv[1]))
target, shadows, members, truth = (given.pop(name) for name in ("target", "shadows", "members", "truth"))


def area(losses):
    """The area under the ROC of what is low for members."""
    found = run_attacks(
        AttackInputData(loss_train=losses[truth], loss_test=losses[~truth]), attack_types=(AttackType.THRESHOLD_ATTACK,)
    )
    return float(found.single_attack_results[0].get_auc())


areas, seconds = {}, {}
for name, scores in given.items():
    started = time.perf_counter()
    areas[name] = area(-scores)
    seconds[name] = time.perf_counter() - started
own_areas, own_seconds = {}, {}
for name, fix_variance in (("lira", False), ("lira, one variance", True)):
    started = time.perf_counter()
    stat_in = [shadows[chosen, i][:, None] for i, chosen in enumerate(members.T)]
    stat_out = [shadows[~chosen, i][:, None] for i, chosen in enumerate(members.T)]
    own = advanced_mia.compute_score_lira(
        target[:, None], stat_in, stat_out, fix_variance=fix_variance, median_or_mean="mean"
    )
    own_seconds[name] = time.perf_counter() - started
    own_areas[name] = area(own)
print(json.dumps({"areas": areas, "seconds": seconds, "own_areas": own_areas, "own_seconds": own_seconds}))
