"""The privacy of a search in plain English."""

from typing import Any

from ...accounting import Ledger, Spent, rounded_up
from ...accounting._adjacency import IN_WORDS
from ...accounting._epsilon import no_smaller, rounded_down
from .._options import seeded
from ..train._results import BY_PLACES, DECLARED
from ._options import TuneOptions
from ._price import Price
from ._score import in_words, scored_on


def statement_of(
    options: TuneOptions,
    task: dict[str, Any],
    price: Price,
    spent: Spent,
    ledger: Ledger,
    *,
    records_scored: int,
    public_test: bool,
    none_drawn: bool,
) -> str:
    """One text that says what a search promises, what was searched, and what it does not promise.

    Args:
        options: of the search.
        task: of the models, as it is described.
        price: what it cost.
        spent: the same as ε.
        ledger: of all that the data were used for, the search last.
        records_scored: over how many records a score adds up.
        public_test: whether what the run was evaluated on is nobody's secret.
        none_drawn: whether no run was drawn, so that there is no model.
    """
    pair = f"({rounded_up(spent.epsilon)}, {no_smaller(options.delta)})"
    adjacency = IN_WORDS[options.relation].format(unit="example")
    kept = (
        "That no run was drawn satisfies" if none_drawn else "The model that was kept and its hyper-parameters satisfy"
    )
    by_places = BY_PLACES if options.holdout else ""
    is_known = options.is_table or public_test
    held_back = "" if is_known else f"The examples held back are not protected either.{by_places} "
    declared = f" {DECLARED}" if options.is_table else ""
    counted = f" trained on and {records_scored:,} held back" if options.is_table else ""
    paragraphs = [
        f"{kept} {pair}-differential privacy by the RDP accountant of Google's dp-accounting (optimal order "
        f"{spent.order:g}): that is the price of the whole search, of which one run alone costs a part.",
        *_before(ledger, options.delta),
        f"Unit and adjacency: one example; two data sets are neighbours if {adjacency}. The number of examples, "
        f"{price.num_examples:,}{counted}, is treated as public.",
        f"Mechanism: a random search, accounted by theorems 2 and 6 of arXiv 2110.03620. The number of runs was drawn from "
        f"{options.search.in_words()}, before the first of them and without looking at the data. {_runs(options, price)} After "
        f"each, {scored_on(of_table=options.is_table)} were predicted, and the sum of how right each prediction was, from 0 to 1 "
        f"({in_words(task)}), was noised with a standard deviation of {price.score_noise:g}. The model with the largest such "
        "number was kept, and all others were erased.",
        "Protected: the model that was kept and the learning rate, clip norm and batch size that it was trained with"
        + (", on behalf of the records trained on and of those held back." if options.is_table else "."),
        "Not protected: how many runs there were, and so how long the search took, and what came of the others; losses, "
        "accuracies and gradient norms measured on the data; choices that were made before, such as the ends of what was "
        f"searched, if they looked at the data. {held_back}JAX's "
        "random generators are not cryptographic, and floating-point noise is discrete; what it costs that the noise ends is "
        "taken from delta, but for a thousandth. "
        + (seeded("This search") if options.seed is not None else "The keys of all runs were erased.")
        + declared,
    ]
    return "\n\n".join(paragraphs)


def _runs(options: TuneOptions, price: Price) -> str:
    parts, epochs = [], options.epochs_of_each
    for name, what in (("lr", "learning rate"), ("clip_norm", "clip norm")):
        low, high = options.ranges[name]
        parts.append(
            f"{what} {low:g}" if low == high else f"{what} drawn between {low:g} and {high:g}, evenly on a log scale"
        )
    noise = ", ".join(f"{rounded_down(sigma)} for batches of {size}" for size, sigma in sorted(price.noise.items()))
    made = f"{epochs} {'epoch' if epochs == 1 else 'epochs'}"
    return (
        f"Each made {made} of DP-SGD by Poisson sampling, with its {parts[0]}, its {parts[1]}, and a noise multiplier of {noise}"
        + (", of which it drew one." if len(price.noise) > 1 else ".")
    )


def _before(ledger: Ledger, delta: float) -> list[str]:
    if len(ledger.entries) < 2:
        return []
    total, labels = ledger.total(delta=delta), "; ".join(entry.label for entry in ledger.entries[:-1])
    return [
        f"The same data was used before, by: {labels}. Together with this search that satisfies "
        f"({rounded_up(total.epsilon)}, {no_smaller(delta)})-differential privacy: {total.in_words()}."
    ]
