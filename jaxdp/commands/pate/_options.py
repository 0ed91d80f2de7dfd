"""The options of `jaxdp pate`, `jaxdp pate label` and `jaxdp pate analyze`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from ... import _checks
from ..._errors import UsageError
from ...pate import aggregators
from .._effects import Effect, check_effects
from .._one_of_several import Coordinator, Distributed, NumProcesses, OneOfSeveral, ProcessId
from .._options import check_given, check_holdout, check_seed, check_types, flag

_AGGREGATORS: dict[str, tuple[str, dict[str, str]]] = {  # by name: the value's type, its fields by option
    "laplace": ("LaplaceNoisyMax", {"gamma": "gamma"}),
    "gnmax": ("GaussianNoisyMax", {"sigma_max": "sigma"}),
    "confident": ("ConfidentNoisyMax", {name: name for name in ("threshold", "sigma_threshold", "sigma_max")}),
    "interactive": (
        "InteractiveNoisyMax",
        {name: name for name in ("threshold", "sigma_threshold", "sigma_max", "student_confidence")},
    ),
}
_OF_250 = {"gamma": 0.05, "threshold": 200.0, "sigma_threshold": 150.0, "sigma_max": 40.0}
_STUDENT_CONFIDENCE = 0.95


def _of_aggregators(name: str) -> Effect:
    takes = lambda aggregator: ", ".join(map(flag, _AGGREGATORS[aggregator][1]))
    return Effect(
        (name,),
        lambda vote: name in _AGGREGATORS[vote.aggregator][1],
        lambda vote: f"with --aggregator {vote.aggregator}, which takes {takes(vote.aggregator)}",
    )


_EFFECTS = tuple(map(_of_aggregators, (*_OF_250, "student_confidence")))


@dataclass(frozen=True, kw_only=True)
class MechanismOptions:
    """How votes become labels. What is left open is the papers' for 250 teachers, scaled with their number."""

    aggregator: Literal["confident", "gnmax", "laplace", "interactive"] = "confident"
    """confident: GNMax where the noisy plurality reaches a threshold; gnmax: Gaussian noise on all counts; laplace: Laplace
    noise; interactive: half the queries as confident, from their answers a first student, and of the other half the teachers
    answer where they disagree with it, and it teaches itself where it is sure"""
    threshold: float | None = None
    """confident, interactive: votes that an answer needs; by default 0.8 of the teachers"""
    sigma_threshold: float | None = None
    """confident, interactive: standard deviation of the noise on the plurality, in votes; by default 0.6 of the teachers"""
    sigma_max: Annotated[float | None, tyro.conf.arg(aliases=["--sigma"])] = None
    """all but laplace: standard deviation of the noise on the counts, in votes; by default 0.16 of the teachers"""
    gamma: float | None = None
    """laplace: one over the scale of the noise; each query costs 2 gamma; by default 12.5 over the number of teachers"""
    student_confidence: float | None = None
    """interactive: probability from which on the first student's own label is used; by default 0.95"""
    delta: float = 1e-5
    """the delta of (epsilon, delta), below 1 / number of private records"""
    effects: ClassVar[tuple[Effect, ...]] = _EFFECTS

    def check_mechanism(self) -> None:
        """Refuse values out of range, and options without effect, such as another aggregator's."""
        check_effects(self)
        parameters = (*_OF_250, "student_confidence")
        check_given(self, _checks.positive, dict.fromkeys(parameters, "leave it out for the default"))
        _checks.delta(self.delta)

    def check_without_student(self) -> None:
        """Refuse an aggregator that asks a student between queries where there is none."""
        self.check_mechanism()
        if self._kind.asks_student:
            raise UsageError(
                f"--aggregator {self.aggregator} asks a student between queries, which a file of predictions has not: use "
                "confident, or jaxdp.pate.interactive_noisy_max with a student of your own"
            )

    @property
    def _kind(self) -> Any:
        return getattr(aggregators, _AGGREGATORS[self.aggregator][0])

    def mechanism(self, teachers: int) -> "aggregators.Aggregator":
        """The mechanism for so many teachers."""
        scales = {
            name: value * (250 / teachers if name == "gamma" else teachers / 250) for name, value in _OF_250.items()
        }
        defaults = scales | {"student_confidence": _STUDENT_CONFIDENCE}
        fields = _AGGREGATORS[self.aggregator][1]
        mechanism = self._kind(**{field: getattr(self, name) or defaults[name] for name, field in fields.items()})
        mechanism.check_teachers(teachers)
        return mechanism


@dataclass(frozen=True, kw_only=True)
class PateOptions(MechanismOptions, OneOfSeveral):
    """Teachers on private shards, votes under noise, and a student on public examples: the whole of PATE on images.

    The training set is private. The first --public test images are public and unlabelled: some are labelled by the teachers, and
    the student learns from all of them. It is measured on the rest of the test set.
    """

    dataset: str = "mnist"
    """data set: mnist is embedded; any other name is a TFDS data set prepared under --data-dir"""
    data_dir: Path | None = None
    """folder with prepared TFDS data sets; ~/tensorflow_datasets if not given"""
    holdout: int = 0
    """hold back this many training examples and use them instead of the test set. To choose between runs by them costs privacy,
    as any choice between runs does: all their ledgers add up"""
    public: int | None = None
    """how many test images the student may see, without their labels; by default nine tenths"""
    teachers: int = 600
    """how many; each gets its own shard of the training set"""
    teacher_model: Literal["graph", "strided"] = "graph"
    """graph: a linear model in coordinates that the public images make of scattering features, by who is near whom; strided: a
    CNN on distorted images, which sees nothing but its shard"""
    teacher_epochs: int = 40
    """passes of each teacher over its shard"""
    teacher_batch_size: int = 24
    """examples a step of a teacher"""
    teacher_lr: float | None = None
    """learning rate of Adam for teachers, falling to 0 by a cosine; by default 0.03 for graph and 0.003 for strided"""
    queries: int = 1000
    """how many of the public images to ask the teachers about, chosen at random"""
    target_epsilon: float | None = None
    """budget for the data-independent epsilon: stop asking before the query that might overrun it; none if not given"""
    max_answers: int | None = None
    """stop asking after this many answers; none if not given"""
    student: Literal["graph", "fixmatch", "supervised"] = "graph"
    """learn from the labels that the answers give to public images near them (graph), from the answers and the unlabelled images
    (fixmatch), or from the answers alone (supervised)"""
    student_steps: int = 2400
    """steps of the student"""
    student_lr: float = 5e-3
    """learning rate of Adam for the student, falling to 0 by a cosine"""
    seed: int | None = None
    """for repeatable experiments: whoever knows it can subtract the noise; by default the operating system's entropy"""
    device: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """where to train; auto takes the best there is; the teachers are divided over all devices of that kind"""
    distributed: Distributed = False
    coordinator: Coordinator = None
    num_processes: NumProcesses = None
    process_id: ProcessId = None
    output: Path | None = None
    """folder for this run's results; runs/DATASET-pate-TIME if not given"""
    resume: Path | None = None
    """folder of an interrupted run to go on with, under the options it was started with (devices and processes may be others)"""

    def check(self) -> None:
        """Refuse values out of range, with the flag's name, the value and the fix."""
        check_types(self)
        if self.dataset == "csv" or self.dataset.lower().endswith(".csv"):
            raise UsageError(
                f"--dataset={self.dataset}: the teachers of jaxdp pate learn from images; of a table, train teachers of your own "
                "on its parts, and label by what they predict: jaxdp pate label PREDICTIONS"
            )
        self.check_mechanism()
        counts = {
            "teachers": "give the number of teachers",
            "teacher_epochs": "give each teacher's passes over its shard",
            "teacher_batch_size": "give the examples a step of a teacher",
            "queries": "give the number of images to ask about",
            "student_steps": "give the student's steps",
            "public": "give the number of public images",
            "max_answers": "give a cap on the answers",
        }
        check_given(self, _checks.count, counts)
        if self._kind.asks_student and self.queries < 2:
            raise UsageError(
                f"--queries={self.queries} is too few for --aggregator {self.aggregator}, whose second half asks a student that "
                "learned from the first: give 2 or more"
            )
        positives = {
            "teacher_lr": "give a learning rate such as 0.003",
            "student_lr": "give a learning rate such as 0.003",
            "target_epsilon": "give a privacy budget such as 2.0",
        }
        check_given(self, _checks.positive, positives)
        check_holdout(self.holdout)
        check_seed(self.seed)
        self.check_processes()


@dataclass(frozen=True, kw_only=True)
class LabelOptions(MechanismOptions):
    """Labels from predictions of teachers who live elsewhere: noisy aggregation, what it cost, and who may see what."""

    predictions: tyro.conf.Positional[Path]
    """a .npy file of whole numbers [teachers, examples], or a .csv file with a line a teacher, a column an example, no header"""
    num_classes: int
    """number of classes; a prediction is a number from 0 to this less one"""
    records: int
    """how many private records the teachers learned from, all together; taken as public. No two teachers may have seen the
    same one: epsilon is false otherwise"""
    teachers: int | None = None
    """how many teachers predicted, that a file the other way round be an error; needed where they outnumber the examples"""
    target_epsilon: float | None = None
    """budget for the data-independent epsilon: stop before the example that might overrun it; none if not given"""
    max_answers: int | None = None
    """stop after this many answers; none if not given"""
    seed: int | None = None
    """for repeatable experiments: whoever knows it can subtract the noise; by default the operating system's entropy"""
    output: Path
    """folder for the results: labels.csv and statement.txt to publish, private/ to keep"""


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(MechanismOptions):
    """The cost of labels that were made of these predictions: data-independent, data-dependent and sanitised epsilon."""

    predictions: tyro.conf.Positional[Path]
    """a .npy file of whole numbers [teachers, examples], or a .csv file with a line a teacher, a column an example, no header"""
    num_classes: int
    """number of classes; a prediction is a number from 0 to this less one"""
    labels: Path | None = None
    """the labels.csv that `jaxdp pate label` made, which says what was answered; needed where the aggregator has a threshold.
    Without it, for the others, all examples count as asked"""
    plot: Path | None = None
    """where to draw how epsilon grows, a .png; private, like the data-dependent epsilon"""
    overwrite: bool = False
    """replace the file of --plot where there is one"""
    json: bool = False
    """print JSON"""
    effects: ClassVar[tuple[Effect, ...]] = (
        *_EFFECTS,
        Effect(("overwrite",), lambda analysis: analysis.plot is not None, lambda _: "without --plot FILE"),
    )
