"""TF Privacy's LiRA and its threshold attack on given confidences: scores, areas and seconds, as one line of JSON.

python attacks_tf_privacy.py confidences.npz scores.npz
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

given = np.load(sys.argv[1])
target, shadows, members, truth = (given[name] for name in ("target", "shadows", "members", "truth"))
ways = {
    "lira": {},
    "lira, one variance": {"fix_variance": True},
    "lira offline": {"option": "out"},
    "lira offline, one variance": {"option": "out", "fix_variance": True},
}


def area(scores):
    """What TF Privacy says of scores that are low for members."""
    found = run_attacks(
        AttackInputData(loss_train=scores[truth], loss_test=scores[~truth]), attack_types=(AttackType.THRESHOLD_ATTACK,)
    )
    return float(max(result.get_auc() for result in found.single_attack_results))


areas, scores, seconds = {}, {}, {}
for name, how in ways.items():
    started = time.perf_counter()
    stat_in = [shadows[chosen, i][:, None] for i, chosen in enumerate(members.T)]
    stat_out = [shadows[~chosen, i][:, None] for i, chosen in enumerate(members.T)]
    scores[name] = advanced_mia.compute_score_lira(target[:, None], stat_in, stat_out, median_or_mean="mean", **how)
    seconds[name] = time.perf_counter() - started
    areas[name] = area(scores[name])
areas["loss"] = area(-target)
np.savez(sys.argv[2], **scores)
print(json.dumps({"areas": areas, "seconds": seconds}))
