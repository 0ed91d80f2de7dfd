"""What is left of a training run: its model, pictures, results and statement, and of the results what may be published."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...accounting import Ledger, accountants_of, rounded_up, statement
from ...data import Classes, Numbers, Targets
from ...data._on_disk import columns
from ...dpsgd._run import DPSGD
from ...dpsgd._state import TrainState
from ...runs._checkpoint import here, save_model
from ...runs._devices import Devices
from ...runs._folder import PRIVATE, RunFolder, close_to_others
from ...runs._loop import Loop
from ...runs._plots import plot_epsilon, plot_metrics
from ...runs._report import HELD_BACK, TEST_SET
from .. import _options
from ._held_back import best_model, in_words
from ._optimizer import params_of
from ._options import NOISE, WRONG_LABELS, TrainOptions
from ._plan import Plan
from ._problem import Problem

_PUBLISHED = (  # of a summary: what follows from the plan and the ledger, and with --patience when the run ended
    "dataset", "model", "evaluated_on", "epsilon", "accountant", "delta", "order", "total_epsilon", "noise_multiplier",
    "clip_norm", "sampling", "adjacency", "batch_size", "steps", "epochs", "kept_epoch", "device",
)  # fmt: skip
_HELD_BACK = (
    "The records held back to evaluate on are not protected either: what is measured on them is without noise, which is why "
    f"it is in the folder {PRIVATE}/."
)
DECLARED = (
    "What was declared of the table's columns (bounds, categories, classes) counts as known without looking at the data, and so "
    "does that no record was refused."
)
BY_PLACES = (
    " Which ones they are follows from how many records there are in all; what is promised is of the records trained on, as "
    "between data sets that have the same ones held back."
)


@dataclass(frozen=True)
class Results:
    """What writes them, once a run is trained.

    Attributes:
        options: what was asked for.
        folder: where they go.
        plan: the run's.
        spent_before: the ledger of all that had been spent before it.
        nonce: names the run's noise.
    """

    options: TrainOptions
    folder: RunFolder
    plan: Plan
    spent_before: Ledger
    nonce: str

    def keep(self, problem: Problem, loop: Loop, state: TrainState, devices: Devices, started: float) -> None:
        """Write the model of what was trained on, the pictures, and then what came out, which stays private."""
        records = self.folder.metrics()
        last, run, options = records[-1], self.plan.run, self.options
        params, kept = here(params_of(state)), last
        if options.keep == "best":
            params, kept = best_model(self.folder, params, records)
        summary = {
            "dataset": problem.name,
            "model": options.architecture,
            **{name: value for name, value in kept.items() if name.startswith("test_")},
            "evaluated_on": TEST_SET if problem.public_test else HELD_BACK,
            **self._of_base_rates(problem),
            "epsilon": None,
            "lr": self.plan.lr,
            "batch_size": self.plan.batch_size,
            "steps": state.step,
            "epochs": last["epoch"],
            **({"kept_epoch": kept["epoch"]} if options.keep == "best" else {}),
            "device": devices.in_words(),
            "first_step_seconds": loop.first_step_seconds,
            "milliseconds_per_step": loop.milliseconds_per_step,
            "seconds_waited": loop.seconds_waited,
            "seconds": time.perf_counter() - started,
            "folder": str(self.folder.path),
        }
        title = f"{options.architecture} on {problem.name}, without privacy"
        if run is not None:
            summary |= self._privacy(run)
            plot_epsilon(run, options.delta, self.folder.epsilon_plot)
            shown = summary["epsilon"][self.plan.accountant]
            title = f"{options.architecture} on {problem.name}, ε = {rounded_up(shown, 3)} at δ = {options.delta:g}"
        plot_metrics(records, title, self.folder.plot)
        close_to_others(self.folder.plot)
        save_model(self.folder.model(private=run is None), params, kept["step"])
        self.folder.keep_results(summary)

    def _of_base_rates(self, problem: Problem) -> dict[str, float]:
        """The figures of who knows how often each target or class is met, or numbers' means, and nothing else.

        They are private, as they are computed of the data. Classes have them in tables alone, where one may be far more frequent.
        """
        model, task = problem.model, problem.model.described["task"]
        if task["kind"] not in (Targets.kind, Numbers.kind) and not (
            self.options.is_table and task["kind"] == Classes.kind
        ):
            return {}
        labels, others = (np.asarray(columns(part)[1]) for part in (problem.train, problem.test))
        if task["kind"] == Classes.kind:
            labels = labels[:, None] == np.arange(task["count"])
        rates = labels.mean(axis=0, dtype=np.float64)
        found = model.evaluate(np.broadcast_to(rates, (len(others), len(rates))), others)
        return {f"base_rate_{name}": value for name, value in model.figures(*found).items()}

    def _ledger(self, run: DPSGD) -> Ledger:
        """All that was spent, this run with it."""
        return self.spent_before.extend(run.ledger(nonce=self.nonce))

    def _privacy(self, run: DPSGD) -> dict[str, Any]:
        """The summary's part about privacy."""
        delta = self.options.delta
        able = accountants_of(run.event, run.adjacency)
        spent = {name: run.spent(delta=delta, accountant=name) for name in ("rdp", "pld") if name in able}
        alone = min(each.epsilon for each in spent.values())
        return {
            "epsilon": {name: each.epsilon for name, each in spent.items()},
            "accountant": self.plan.accountant,
            "delta": delta,
            "order": spent["rdp"].order if "rdp" in spent else None,
            "total_epsilon": self._ledger(run).total(delta=delta).epsilon if self.spent_before.entries else alone,
            "noise_multiplier": run.noise_multiplier,
            "clip_norm": run.clip_norm,
            "sampling": run.sampling.name,
            "adjacency": run.adjacency,
        }

    def publish(self) -> None:
        """Write what says that the keys are erased, after they are, and at last what may be seen of the results."""
        summary = self.folder.results()
        if self.plan.run is not None:
            self._write_statement(self.plan.run, summary)
        with_test = self.plan.run is not None and is_public(summary)
        self.folder.write_json("summary.json", published(summary, with_test=with_test))

    def _write_statement(self, run: DPSGD, summary: dict[str, Any]) -> None:
        notes = ["The keys of this run, and the checkpoints that held them, were erased when it finished."]
        if self.options.seed is not None:
            notes = [_options.seeded("This run")]
        if self.plan.budget is not None:
            notes.append(
                _chosen_for(self.plan.budget, self.plan.accountant, with_ledger=bool(self.spent_before.entries))
            )
        if not is_public(summary):
            notes.append(_HELD_BACK + (BY_PLACES if self.options.holdout else ""))
        if self.options.is_table:
            notes.append(DECLARED)
        if self.options.audit_canaries is not None:
            notes.append(_canaries(self.options.audit_canaries, self.options.canaries))
        notes += in_words(self.options, summary, run.steps)
        told = {"notes": tuple(notes), "accountant": self.plan.accountant or "rdp"}
        text = statement(run, delta=self.options.delta, spent_before=self.spent_before, **told)
        self.folder.write_text("statement.txt", text + "\n")
        fields = {name: summary[name] for name in ("epsilon", "delta", "order", "total_epsilon")}
        described = {"run": run.to_dict(), "ledger": self._ledger(run).to_dict(), "statement": text}
        self.folder.write_json("statement.json", fields | described)


def is_public(summary: dict[str, Any]) -> bool:
    """Whether what a run was evaluated on was nobody's secret as it was trained, whatever its data set says of itself since."""
    return summary.get("evaluated_on") == TEST_SET


def published(summary: dict[str, Any], *, with_test: bool) -> dict[str, Any]:
    """What of a summary may be seen by all; with the accuracy on a test set that is nobody's secret."""
    shown = (*_PUBLISHED, *(name for name in summary if with_test and name.startswith("test_")))
    return {name: summary[name] for name in shown if name in summary}


def _chosen_for(budget: float, accountant: str | None, *, with_ledger: bool) -> str:
    """The sentence of a statement that says what the noise is for."""
    together = ", together with what the ledger held before" if with_ledger else ""
    return (
        f"The noise multiplier is the least with which the {str(accountant).upper()} accountant finds no more than "
        f"ε = {budget:g}{together}."
    )


def _canaries(number: int, kind: str) -> str:
    """Their sentence in a statement."""
    became = {WRONG_LABELS: "have wrong labels", NOISE: "became noise with random labels"}
    return (
        f"{number} of the training examples, chosen at random, {became.get(kind, 'became others, of a file')}, and a fair coin "
        "kept each of them out or left it in: canaries, from which jaxdp audit finds a lower bound on epsilon. They were drawn, "
        "clipped and counted as all others, those kept out with gradients of zero. Where one example more would make another one "
        "a canary, or none, the promise is of the same examples as canaries. Who they are, and the coins, is in the folder "
        f"{PRIVATE}/."
    )
