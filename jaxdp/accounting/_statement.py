"""The privacy of a run in plain English."""

import math
from typing import TYPE_CHECKING

from ._epsilon import event_epsilon

if TYPE_CHECKING:
    from .._run import DPSGD


def statement(run: "DPSGD", *, delta: float, steps: int | None = None, notes: tuple[str, ...] = ()) -> str:
    """One text that says what a run promises, to whom, under which assumptions, and what it does not promise.

    Args:
        run: the run.
        delta: the δ of (ε, δ), below 1 / num_examples.
        steps: how many of its steps have been made; all of them by default.
        notes: further caveats, a sentence each.

    Returns:
        A few paragraphs of text, with ε by the RDP and the PLD accountant.

    Raises:
        UsageError: for a delta out of range, or more steps than the run has.
    """
    made = run.steps if steps is None else steps
    event = run.event_of(made)
    rdp = event_epsilon(event, delta=delta, accountant="rdp")
    pld = event_epsilon(event, delta=delta, accountant="pld")
    rate = run.sampling_rate
    return "\n\n".join(
        [
            f"This training satisfies ({_rounded_up(rdp.epsilon)}, {delta:g})-differential privacy by the RDP accountant of "
            f"Google's dp-accounting (optimal order {rdp.order:g}), and ({_rounded_up(pld.epsilon)}, {delta:g}) by its PLD "
            "accountant, which is tighter. Both hold; either may be quoted.",
            f"Unit and adjacency: one training example; two data sets are neighbours if one is the other with one example "
            f"added or removed. The number of examples, {run.num_examples:,}, is treated as public.",
            f"Mechanism: {made:,} steps of DP-SGD. For each, every example entered the batch independently with probability "
            f"{run.expected_batch_size:g}/{run.num_examples} = {rate:.6g} (Poisson sampling, executed as accounted); its "
            f"gradient was {run.rule.in_words(run.clip_norm)}; Gaussian noise of standard deviation "
            f"{run.noise_multiplier_of_sum:.6g} times that norm was added to the sum, which was then divided by "
            f"{run.expected_batch_size:g}, a constant.",
            "Protected: the parameters after every step, hence all checkpoints, and whatever is computed from them without "
            "the training data.",
            "Not protected: losses, accuracies and gradient norms measured on the training data; choices of hyper-parameters "
            "made by looking at it; the random keys, with which the noise could be subtracted (keep them secret until the "
            "run is finished, then delete them). JAX's random generators are not cryptographic, and floating-point noise is "
            "discrete." + "".join(f" {note}" for note in notes),
        ]
    )


def _rounded_up(epsilon: float) -> str:
    """Four decimals, never below the true value."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}" if math.isfinite(epsilon) else "infinite"
