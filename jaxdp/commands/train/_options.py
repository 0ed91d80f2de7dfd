"""The options of `jaxdp train`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from ... import _checks, data, models
from ..._errors import UsageError
from .._effects import CUTTING, Effect, check_effects
from .._one_of_several import Coordinator, Distributed, NumProcesses, OneOfSeveral, ProcessId
from .._options import check_given, check_holdout, check_seed, check_types, flag
from .._sampling import SamplingName
from ._recipe import RECIPES, Recipe, recipe_for, recipe_named

_OF_PRIVACY = (
    *("clip_norm", "noise_multiplier", "target_epsilon", "delta", "sampling", "truncated_batch_size", "adjacency"),
    *("accountant", "ledger", "microbatch_size"),
)
_OF_TABLES = (
    *(
        "features",
        "targets",
        "target_columns",
        "classes",
        "target_bounds",
        "columns",
        "categories",
        "bounds",
        "bounds_file",
        "bounds_noise",
        "missing",
    ),
    *("folds", "fold", "precision"),
)
_OF_SEVERAL = ("devices", "distributed", "coordinator", "num_processes", "process_id")
MOA_CATEGORIES = ("cp_type=trt_cp,ctl_vehicle", "cp_time=24,48,72", "cp_dose=D1,D2")  # of the drug-response competition
WRONG_LABELS, NOISE = "wrong-labels", "noise"  # what canaries may be, if not of a file
_LEAST_CANARIES = 32
_OF_MODELS = ("activation", "hidden", "scales")
_ABOUT_RECIPES = (
    "a preset for all that is not given beside it; by default the first of these that has the model: "
    + "; ".join(f"{name}, {recipe.about}" for name, recipe in RECIPES.items())
)


def _by_recipe(name: str, *aliases: str) -> Any:
    """For a field that the recipe fills in: help shows what the usual one, that of a run without options, has."""
    usual, value = next((name, recipe.options("sgd")) for name, recipe in RECIPES.items())
    shown = f"{value[name]:g}" if isinstance(value[name], float) else value[name]
    return tyro.conf.arg(help_behavior_hint=f"(default: {shown}, by the recipe {usual})", aliases=aliases or None)


_EFFECTS = (
    Effect(
        _OF_PRIVACY,
        lambda run: run.dp,
        lambda _: "with --no-dp, which trains without privacy",
        ", or train with privacy by leaving out --no-dp",
    ),
    Effect(
        _OF_SEVERAL,
        lambda run: run.dp,
        lambda _: "with --no-dp, which trains on one device",
        ", or train with privacy by leaving out --no-dp",
    ),
    Effect(
        _OF_TABLES,
        lambda run: run.is_table,
        lambda run: (
            f"on --dataset {run.dataset}, which is no table"
            + (": that is --dataset csv, with its file as --features" if "." in run.dataset else "")
        ),
        ", or give --dataset csv",
    ),
    Effect(
        ("data_dir", "reading"),
        lambda run: not run.is_table,
        lambda _: "with --dataset csv, whose files --features and --targets name",
    ),
    *(
        Effect(
            (name,),
            lambda run, name=name: run.architecture not in models.MODELS or name in models.options_of(run.architecture),
            lambda run: f"with --model {run.architecture}, which takes none",
        )
        for name in _OF_MODELS
    ),
    Effect(
        ("activation",),
        lambda run: run.architecture not in models.MODELS or _has_layers(run),
        lambda _: "without hidden layers, between which it would be",
        ", or give their widths by --hidden",
    ),
    Effect(
        ("canaries",),
        lambda run: run.audit_canaries is not None,
        lambda _: "without canaries",
        ", or give their number by --audit-canaries",
    ),
    Effect(
        ("momentum",),
        lambda run: run.optimizer == "sgd",
        lambda run: f"with --optimizer {run.optimizer}, which has its own",
        ", or give --optimizer sgd",
    ),
    Effect(
        ("plateau_factor", "plateau_patience"),
        lambda run: run.schedule == "plateau",
        lambda _: "without a plateau",
        ", or give --schedule plateau",
    ),
    Effect(
        ("augmentations",),
        lambda run: run.architecture not in models.MODELS or models.sees_pixels(run.architecture),
        lambda run: f"with --model {run.architecture}, which sees no pixels while it is trained",
    ),
    CUTTING,
)


def _check_decay(name: str, value: Any, fix: str) -> None:
    if not 0 <= _checks.real(name, value, fix) < 1:
        raise UsageError(f"{name}={value} must lie between 0 and 1 (1 excluded): {fix}")


def _has_layers(run: "TrainOptions") -> bool:
    """Whether the model has hidden layers, or others between which an activation is."""
    return bool(models.options_of(run.architecture).get("hidden", True) if run.hidden is None else run.hidden)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(OneOfSeveral):
    """Options of a training run. Those left at None are filled in by the recipe for the model (`jaxdp train --help`)."""

    dataset: str = "mnist"
    """data set: mnist is embedded; csv is a table, --features with --targets or --target-columns; any other name is a TFDS data
    set prepared under --data-dir"""
    data_dir: Path | None = None
    """folder with prepared TFDS data sets; ~/tensorflow_datasets if not given"""
    reading: Literal["auto", "memory", "disk"] = "auto"
    """where the images of a TFDS data set are while the model is trained: in memory, or on disk and decoded as they are drawn,
    which leads to the same model; auto leaves on disk what would take more than a third of the memory that there is"""
    holdout: int = 0
    """hold back this many training examples and evaluate on them instead of the test set. To choose between runs by them costs
    privacy, as any choice between runs does: --ledger counts it, or jaxdp tune chooses"""
    features: Path | None = None
    """with --dataset csv: the file of features, ids in its first column"""
    targets: Path | None = None
    """with --dataset csv: the file of targets, with the same ids: 0 or 1, or what --classes or --target-bounds say"""
    target_columns: tuple[str, ...] = ()
    """with --dataset csv: the columns of --features that are the targets, in the place of a file of their own"""
    classes: str | None = None
    """with --dataset csv: what the one column of targets can hold, as value,value,value; public knowledge, never read off the
    data. The loss is the cross-entropy of a softmax; by default each target is 0 or 1"""
    target_bounds: tuple[float, float] | None = None
    """with --dataset csv: targets are numbers, and these the least and the largest that one can be, in the targets' unit, known
    without the data, for all targets alike. To train, numbers are clamped to them and scaled to [-1, 1]; the loss is squared
    error"""
    columns: Path | None = None
    """with --dataset csv: a file of the features to use, names or numbers from 0, one a line; all by default"""
    categories: tuple[str, ...] = MOA_CATEGORIES
    """with --dataset csv: what columns of text can hold, as column=value,value; public knowledge, never read off the data"""
    bounds: tuple[float, float] | None = None
    """with --dataset csv: the least and the largest that numbers can be, known without the data; values beyond are clamped"""
    bounds_file: Path | None = None
    """with --dataset csv: the same for each column by itself, a CSV file with the columns name, lower, upper"""
    bounds_noise: float | None = None
    """with --dataset csv: estimate bounds instead, under noise of this multiplier, and charge that to the ledger"""
    missing: Literal["refuse", "middle"] = "refuse"
    """with --dataset csv: what to do about missing numbers; middle puts them in the middle of their bounds"""
    folds: int | None = None
    """with --dataset csv: train this many models, each evaluated on the part of the records that it hasn't seen"""
    fold: int | None = None
    """with --folds: train this one alone, counted from 1"""
    recipe: Annotated[str | None, tyro.conf.arg(help=_ABOUT_RECIPES)] = None
    model: str | None = None
    """scattering, a linear model on wavelet scattering features, cnn, the tutorials' CNN (26,010 parameters on MNIST; pixels from
    -1 to 1; tanh, where TF Privacy's has --activation relu), mlp, their MLP 784-256-64-10 with dropout 0.2, strided, a CNN
    without pooling, or for csv dense, a dense network with layer and weight normalisation and dropout 0.2; by default scattering,
    and dense for csv. From Python also one of your own, in jaxdp.models.MODELS"""
    hidden: tuple[int, ...] | None = None
    """widths of hidden layers, of scattering (none by default), mlp (256 64) and dense (2048 1048)"""
    scales: int = 2
    """of scattering: features are averages over 2^scales pixels"""
    precision: Literal["float32", "bf16"] = "float32"
    """in which dense computes; parameters, clipping and noise are float32 always"""
    activation: Literal["tanh", "relu"] = "tanh"
    """between layers; tanh suits clipped gradients"""
    optimizer: Annotated[Literal["sgd", "adam"], tyro.conf.arg(aliases=["--opt"])] = "sgd"
    """what takes the noisy mean gradient"""
    lr: Annotated[float | None, _by_recipe("lr")] = None
    """learning rate"""
    momentum: Annotated[float | None, _by_recipe("momentum")] = None
    """decay of sgd's momentum, such as 0.9, or 0 for none"""
    schedule: Annotated[Literal["constant", "cosine", "linear", "plateau"] | None, _by_recipe("schedule")] = None
    """how the learning rate goes on after --warmup: constant; cosine or linear, falling to 0 by the end of the run; or plateau,
    falling by --plateau-factor where the loss on --holdout or the fold doesn't improve, which costs no privacy of the training
    examples"""
    plateau_factor: float = 0.1
    """with --schedule plateau: by what the learning rate is multiplied"""
    plateau_patience: int = 3
    """with --schedule plateau: after how many epochs without a better loss"""
    warmup: Annotated[int | None, _by_recipe("warmup")] = None
    """steps over which the learning rate rises to --lr"""
    ema: Annotated[float | None, _by_recipe("ema")] = None
    """decay of a moving average of the parameters, such as 0.999, which is what is evaluated and predicts then; 0 for none"""
    augmentations: Annotated[int | None, _by_recipe("augmentations")] = None
    """an example's loss is the mean over this many distortions of its image, drawn anew at each step, which costs no privacy;
    0 for the image as it is"""
    patience: int | None = None
    """stop after this many epochs without a better loss on --holdout or the fold; costs no privacy of the training examples"""
    keep: Literal["last", "best"] = "last"
    """which epoch's model is kept: the last one's, or that with the best loss on --holdout or the fold; costs no privacy of the
    training examples"""
    epochs: Annotated[int | None, _by_recipe("epochs")] = None
    """passes over the data, of examples / batch size steps each, rounded (up with --sampling shuffle)"""
    batch_size: Annotated[int | None, _by_recipe("batch_size")] = None
    """examples a step: the expected number with --dp, the exact one with --no-dp or --sampling shuffle"""
    dp: bool = True
    """train with differential privacy"""
    clip_norm: Annotated[float | None, _by_recipe("clip_norm", "--l2-norm-clip")] = None
    """L2 norm to which each example's gradient is clipped"""
    noise_multiplier: Annotated[
        float | None,
        tyro.conf.arg(aliases=["--noise-mult"], help_behavior_hint="(default: what --target-epsilon asks for)"),
    ] = None
    """standard deviation of the noise in units of the clip norm"""
    target_epsilon: Annotated[
        float | None, tyro.conf.arg(help_behavior_hint="(default: 1, if --noise-multiplier isn't given either)")
    ] = None
    """privacy budget. Alone it sets the noise multiplier; beside --noise-multiplier it ends the run before the step that would
    overshoot it; with --sampling shuffle, then, the noise that gives 1.0 to Poisson sampling"""
    delta: float = 1e-5
    """the delta of (epsilon, delta), below 1 / number of examples"""
    sampling: SamplingName = "poisson"
    """how batches are drawn: poisson, each example on its own; truncated_poisson, at most --truncated-batch-size of that;
    shuffle, every example once an epoch, for which no amplification by sampling can be accounted"""
    truncated_batch_size: int | None = None
    """the most examples of a batch with --sampling truncated_poisson; by default two standard deviations above --batch-size"""
    adjacency: Literal["add_or_remove_one", "replace_special", "replace_one"] | None = None
    """which data sets are neighbours; add_or_remove_one by default, and replace_special (an example blanked in place) with
    --sampling shuffle"""
    accountant: Literal["rdp", "pld"] | None = None
    """by which accountant --target-epsilon is meant and epsilon shown; rdp by default, and pld where rdp can't account the run"""
    ledger: Path | None = None
    """JSON of what has been spent on the same data before, under the same adjacency: the statement.json of an earlier run, or a
    ledger of jaxdp.accounting; --target-epsilon is then for all of it together"""
    audit_canaries: int | None = None
    """make canaries of this many training examples, chosen at random, and train on each of them or not by a fair coin of its
    own, so that `jaxdp audit` can say how much of that the model tells; 1000 are enough to see something"""
    canaries: str = WRONG_LABELS
    """what they become: wrong-labels, the same images with other labels; noise, images of random pixels with random labels, as no
    others are; or a .npz file with your own, as arrays inputs and labels, of which the first so many are taken"""
    microbatch_size: int | None = None
    """examples processed at once: bounds memory, changes speed only; by default what suits the device"""
    seed: int | None = None
    """for repeatable experiments: whoever knows it can subtract the noise; by default the operating system's entropy"""
    device: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """where to train; auto takes the best there is"""
    devices: int | None = None
    """how many devices of that kind, of each process, divide the work of a step; all by default, one with --no-dp"""
    distributed: Distributed = False
    coordinator: Coordinator = None
    num_processes: NumProcesses = None
    process_id: ProcessId = None
    output: Path | None = None
    """folder for this run's results; runs/DATASET-MODEL-TIME if not given"""
    resume: Path | None = None
    """folder of an interrupted run to go on with, under the options it was started with (--microbatch-size, --reading,
    devices and processes may be others)"""
    effects: ClassVar[tuple[Effect, ...]] = _EFFECTS

    @property
    def architecture(self) -> str:
        """The model, named or not."""
        if self.model is not None or self.recipe is None:
            return self.model or ("dense" if self.is_table else "scattering")
        return recipe_named(self.recipe).model

    @property
    def recipe_in_use(self) -> Recipe:
        """The recipe, named or not."""
        if self.recipe is not None:
            return recipe_named(self.recipe)
        of_numbers = self.dp and self.architecture == "dense" and self.target_bounds is not None
        return recipe_named("dense-numbers") if of_numbers else recipe_for(self.architecture, dp=self.dp)

    @property
    def is_table(self) -> bool:
        """Whether the data are a table, which `features` and `targets` name, and not a data set with a name."""
        return self.dataset == "csv"

    def check(self) -> None:
        """Refuse values out of range, with the flag's name, the value and the fix; and options without effect."""
        check_types(self)
        check_effects(self)
        check_given(
            self,
            _checks.positive,
            {
                "lr": "give a learning rate such as 1.0",
                "target_epsilon": "give a privacy budget such as 1.0",
                "bounds_noise": "give the noise in units of the sensitivity, such as 10",
            },
        )
        counts = {
            "epochs": "give the number of passes over the data",
            "batch_size": "give the number of examples a step",
            "microbatch_size": "give the examples to process at once",
            "devices": "give how many devices are to share the work",
            "num_processes": "give how many processes train together",
            "patience": "give the epochs to wait for a better loss",
            "plateau_patience": "give the epochs to wait for a better loss",
            "folds": "give the number of parts, such as 5",
            "scales": "give the octaves of scattering, such as 2",
        }
        check_given(self, _checks.count, counts)
        check_given(self, _check_decay, dict.fromkeys(("momentum", "ema"), "0.9 is usual, 0 for none"))
        check_given(self, _check_decay, {"plateau_factor": "0.1 is usual"})
        wholes = {
            "warmup": "give the steps over which the learning rate rises",
            "augmentations": "give the distortions of an image, such as 4",
        }
        check_given(self, _checks.whole, wholes)
        if any(width < 1 for width in self.hidden or ()):
            raise UsageError(f"--hidden={self.hidden} must be widths of layers, 1 or more each: such as 2048 1048")
        if (decided := self.by_held_back) and not self.holdout and not self.is_table:
            raise UsageError(
                f"{decided} goes by the loss on examples held back, and none are: give --holdout, such as 5000"
            )
        check_holdout(self.holdout)
        check_seed(self.seed)
        models.check_model(self.architecture)
        self._check_processes()
        if self.audit_canaries is not None:
            self._check_canaries()
        if self.is_table:
            self._check_table()
        if self.dp and not self.recipe_in_use.dp:
            raise UsageError(
                f"--recipe={self.recipe} is without privacy, and --dp is the default: give --no-dp beside it, or another recipe"
            )
        if self.dp:
            self._check_privacy()

    @property
    def by_held_back(self) -> str:
        """An option that needs examples held back, as it was given; empty where none does."""
        given = {"patience": self.patience, "keep": self.keep if self.keep != "last" else None}
        given["schedule"] = self.schedule if self.schedule == "plateau" else None
        return next((f"{flag(name)}={value}" for name, value in given.items() if value is not None), "")

    def _check_processes(self) -> None:
        self.check_processes()
        if self.of_several and self.folds is not None and self.fold is None:
            raise UsageError(
                f"--folds={self.folds} with several processes: they train one model together; give --fold for one after the other"
            )

    def _check_canaries(self) -> None:
        fix = "give how many examples are to be canaries, such as 1000"
        if _checks.count("--audit-canaries", self.audit_canaries, fix) < _LEAST_CANARIES:
            raise UsageError(
                f"--audit-canaries={self.audit_canaries} are too few for coins to tell anything: give {_LEAST_CANARIES} or more"
            )
        if self.canaries not in (WRONG_LABELS, NOISE) and not self.canaries.endswith(".npz"):
            raise UsageError(
                f"--canaries={self.canaries} is neither {WRONG_LABELS} nor {NOISE}, nor a .npz file: give one of these"
            )
        if self.is_table:
            raise UsageError(
                f"--audit-canaries={self.audit_canaries} with --dataset csv: canaries have a wrong class, and a table's records "
                "have targets; put canaries into the files yourself, and give jaxdp audit their scores"
            )

    def _check_table(self) -> None:
        if not models.suits(self.architecture, "features"):
            raise UsageError(
                f"--model={self.architecture} takes images: for --dataset csv leave it out"
                f"{f' and --recipe {self.recipe} too' if self.recipe else ''}, or give {models.models_for('features')}"
            )
        if self.features is None or (self.targets is None) == (not self.target_columns):
            raise UsageError(
                "--dataset csv needs --features FILE, and --targets FILE or, where one file has both, --target-columns NAME"
            )
        if self.classes is not None and self.target_bounds is not None:
            raise UsageError(
                f"--classes={self.classes} with --target-bounds: targets are classes or numbers; give one of the two"
            )
        if self.classes is not None:
            data.declared_classes(self.classes)
        if self.target_bounds is not None:
            for end in self.target_bounds:
                _checks.real(
                    "--target-bounds", end, "give the least and the largest that a target can be, such as 0 100"
                )
            data.Numbers(1, *self.target_bounds)
        ways = [name for name in ("bounds", "bounds_file", "bounds_noise") if getattr(self, name) is not None]
        if len(ways) != 1:
            raise UsageError(
                f"--dataset csv needs one way to scale numbers, and {len(ways)} are given: --bounds LOWER UPPER where they are "
                "known without the data, --bounds-file FILE for each column by itself, or --bounds-noise to estimate them"
            )
        if self.bounds_noise is not None and not self.dp:
            raise UsageError(
                "--bounds-noise with --no-dp: a run without privacy has no ledger to charge; give --bounds"
            )
        if self.holdout:
            raise UsageError(
                f"--holdout={self.holdout} with --dataset csv: a fifth of the records is held back as it is; give --folds for "
                "another part"
            )
        if self.folds is not None and self.folds < 2:
            raise UsageError(f"--folds={self.folds} must be 2 or more: 5 is usual")
        if self.fold is not None and not (self.folds and 1 <= self.fold <= self.folds):
            raise UsageError(f"--fold={self.fold} is one of --folds={self.folds}, counted from 1")

    def _check_privacy(self) -> None:
        if self.clip_norm is not None:
            _checks.positive("--clip-norm", self.clip_norm, "give the L2 norm to clip gradients to, such as 1.0")
            _checks.clip_norm(self.clip_norm)
        if self.noise_multiplier is not None:
            fix = "give the noise in units of the clip norm, such as 1.1"
            _checks.non_negative("--noise-multiplier", self.noise_multiplier, fix)
            if self.noise_multiplier == 0:
                raise UsageError(
                    "--noise-multiplier=0 with --dp adds no noise, so epsilon would be infinite: give a noise multiplier "
                    "above 0, or train without privacy by --no-dp"
                )
        _checks.delta(self.delta)
        if self.truncated_batch_size is not None:
            _checks.count("--truncated-batch-size", self.truncated_batch_size, "give the most examples of a batch")
