"""The privacy of a run in plain English, for a lawyer and a researcher."""

from typing import TYPE_CHECKING

from .. import _checks
from ._adjacency import IN_WORDS
from ._epsilon import Spent, accountants_of, event_epsilon, rounded_up
from ._ledger import Ledger

if TYPE_CHECKING:
    from ..dpsgd._run import DPSGD


def statement(
    run: "DPSGD",
    *,
    delta: float,
    steps: int | None = None,
    spent_before: Ledger | None = None,
    notes: tuple[str, ...] = (),
) -> str:
    """One text that says what a run promises, to whom, under which assumptions, and what it does not promise.

    Args:
        run: the run.
        delta: the δ of (ε, δ), below 1 / num_examples.
        steps: how many of its steps have been made; all of them by default.
        spent_before: what else has touched the same data; the text then states the total too.
        notes: further caveats, a sentence each.

    Returns:
        A few paragraphs of text, with ε by the RDP and the PLD accountant where both can account the run.

    Raises:
        UsageError: for a delta out of range, more steps than the run has, or a ledger under another adjacency.
    """
    from ..dpsgd._run import DPSGD

    _checks.instance("run", run, DPSGD, "give a jaxdp.DPSGD")
    _checks.texts("notes", notes)
    if spent_before is not None:
        _checks.instance("spent_before", spent_before, Ledger, "give a jaxdp.accounting.Ledger")
    made = run.steps if steps is None else _checks.whole("steps", steps, "give a number of the run's steps")
    unit, several = run.unit_in_words
    return "\n\n".join(
        [
            _guarantee(run, delta, made),
            *_ledger(run, delta, made, spent_before or Ledger(adjacency=run.adjacency)),
            f"Unit and adjacency: {unit}; two data sets are neighbours if {IN_WORDS[run.adjacency].format(unit=run.unit)}. The "
            f"number of {several}, {run.num_examples:,}, is treated as public.",
            f"Mechanism: {made:,} steps of DP-SGD. {_sampling(run, delta, made)} The gradient of each {run.unit} was "
            f"{run.rule.in_words(run.clip_norm)}; Gaussian noise of standard deviation {run.noise_multiplier_of_sum:.6g} times "
            f"that norm was added to the sum, which was then divided by {run.expected_batch_size:g}, a constant.",
            "Protected: the parameters after every step, and whatever is computed from them without the training data.",
            "Not protected: losses, accuracies and gradient norms measured on the training data; choices of hyper-parameters "
            "made by looking at it, unless they are in the ledger; the random keys, with which the noise could be subtracted "
            "(keep them secret until the run is finished, then delete them), and with them the checkpoints of a run under way. "
            "JAX's random generators are not cryptographic, and floating-point noise is discrete; what it costs that the noise "
            "ends is taken from delta, but for a thousandth." + "".join(f" {note}" for note in notes),
        ]
    )


def _guarantee(run: "DPSGD", delta: float, made: int) -> str:
    spent = _figures(run, delta, made)
    if len(spent) == 2:
        rdp, pld = spent["rdp"], spent["pld"]
        tighter = ", which is tighter" if pld.epsilon < rdp.epsilon else ""
        return (
            f"This training satisfies {_pair(rdp)}-differential privacy by the RDP accountant of Google's dp-accounting (optimal "
            f"order {rdp.order:g}), and {_pair(pld)} by its PLD accountant{tighter}. Both hold; either may be quoted."
        )
    if "rdp" in spent:
        return (
            f"This training satisfies {_pair(spent['rdp'])}-differential privacy by the RDP accountant of Google's dp-accounting "
            f"(optimal order {spent['rdp'].order:g}). Its PLD accountant would take too long for this run."
        )
    return (
        f"This training satisfies {_pair(spent['pld'])}-differential privacy by the PLD accountant of Google's dp-accounting. "
        "Its RDP accountant has no figure for this sampling under this adjacency."
    )


def _figures(run: "DPSGD", delta: float, made: int) -> dict[str, Spent]:
    """The run's ε by RDP and by PLD, where there is one."""
    event = run.event_of(made)
    names = [name for name in accountants_of(event, run.adjacency) if name != "classic"]
    of = lambda name: event_epsilon(event, delta=delta, accountant=name, adjacency=run.adjacency)
    return {name: of(name) for name in names or ["pld"]}


def _ledger(run: "DPSGD", delta: float, made: int, before: Ledger) -> list[str]:
    if not before.entries:
        return []
    total = before.extend(run.ledger(made)).total(delta=delta)
    labels = "; ".join(entry.label for entry in before.entries)
    alone = max((each.epsilon for each in _figures(run, delta, made).values()), default=0.0)
    why = f" It is less than the {rounded_up(alone)} for this training alone because it is by another, tighter accountant."
    return [
        f"The same data was used before, by: {labels}. Together with this training that satisfies ({rounded_up(total.epsilon)}, "
        f"{delta:g})-differential privacy: {total.in_words()}." + (why if total.epsilon < alone else "")
    ]


def _sampling(run: "DPSGD", delta: float, made: int) -> str:
    rate = f"{run.expected_batch_size:g}/{run.num_examples} = {run.sampling_rate:.6g}"
    if run.sampling == "poisson":
        return (
            f"For each, every {run.unit} entered the batch independently with probability {rate} (Poisson sampling, executed as "
            "accounted)."
        )
    if run.sampling == "truncated_poisson":
        return (
            f"For each, every {run.unit} was drawn independently with probability {rate} (the larger of two neighbouring data "
            f"sets has {run.num_examples:,}), and of a draw of more than {run.truncated_batch_size:,} a random subset of that "
            "size was used (truncated Poisson sampling, executed as accounted)."
        )
    text = (
        f"Each epoch used every {run.unit} once, in shuffled batches of {run.expected_batch_size:g}. Shuffling has no "
        "amplification by sampling that could be certified, so each epoch is accounted as one Gaussian mechanism without sampling"
    )
    poisson = run.as_poisson()
    if made == 0 or poisson.adjacency == "replace_one":
        return text + "."
    other = event_epsilon(poisson.event_of(made), delta=delta, adjacency=poisson.adjacency)
    return text + (
        "; that is why epsilon is so large. With Poisson sampling, the same batch size, noise and steps would cost "
        f"{_pair(other)} by the RDP accountant."
    )


def _pair(spent: Spent) -> str:
    coarse = "" if spent.interval is None else f" (an upper bound, in coarse steps of {spent.interval:g})"
    return f"({rounded_up(spent.epsilon)}, {spent.delta:g}){coarse}"
