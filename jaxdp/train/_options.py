"""What a user can ask of `jaxdp train`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from .. import _checks
from .._errors import UsageError
from .._options import check_given, check_holdout, check_seed


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a training run. Those left at None are filled in by the recipe for the model (`jaxdp train --help`)."""

    dataset: str = "mnist"
    """data set: mnist is embedded; any other name is a TFDS data set prepared under --data-dir"""
    data_dir: Path | None = None
    """folder with prepared TFDS data sets; ~/tensorflow_datasets if not given"""
    holdout: int = 0
    """hold back this many training examples and evaluate on them instead of the test set: for choosing hyper-parameters"""
    model: Literal["cnn", "mlp"] = "cnn"
    """the tutorials' CNN (26,010 parameters on MNIST) or MLP 784-256-64-10 with dropout 0.2"""
    activation: Literal["tanh", "relu"] = "tanh"
    """between layers; tanh suits clipped gradients"""
    optimizer: Annotated[Literal["sgd", "adam"], tyro.conf.arg(aliases=["--opt"])] = "sgd"
    """what takes the noisy mean gradient"""
    lr: float | None = None
    """learning rate; by default that of the recipe"""
    momentum: float = 0.0
    """decay of sgd's momentum, such as 0.9; none by default, as in the tutorials"""
    epochs: int | None = None
    """passes over the data, of round(examples / batch size) steps each; by default that of the recipe"""
    batch_size: int | None = None
    """examples a step: the expected number with --dp, the exact one with --no-dp; by default that of the recipe"""
    dp: bool = True
    """train with differential privacy"""
    clip_norm: Annotated[float | None, tyro.conf.arg(aliases=["--l2-norm-clip"])] = None
    """L2 norm to which each example's gradient is clipped; by default that of the recipe"""
    noise_multiplier: Annotated[float | None, tyro.conf.arg(aliases=["--noise-mult"])] = None
    """standard deviation of the noise in units of the clip norm; by default what --target-epsilon asks for"""
    target_epsilon: float | None = None
    """privacy budget. Alone it sets the noise multiplier; beside --noise-multiplier it ends the run before the step that would
    overshoot it; 1.0 if neither is given"""
    delta: float = 1e-5
    """the delta of (epsilon, delta), below 1 / number of examples"""
    sampling: Literal["poisson", "truncated_poisson", "shuffle"] = "poisson"
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
    """JSON of what has been spent on the same data before: the statement.json of an earlier run, or a ledger of jaxdp.accounting;
    --target-epsilon is then for all of it together"""
    microbatch_size: int | None = None
    """examples processed at once: bounds memory, changes speed only; by default what suits the device"""
    seed: int | None = None
    """for repeatable experiments: whoever knows it can subtract the noise; by default the operating system's entropy"""
    device: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """where to train; auto takes the best there is"""
    output: Path | None = None
    """folder for this run's results; runs/DATASET-MODEL-TIME if not given"""
    resume: Path | None = None
    """folder of an interrupted run to go on with, under the options it was started with"""

    def check(self) -> None:
        """Refuse values out of range, with the flag's name, the value and the fix."""
        check_given(
            self,
            _checks.positive,
            {"lr": "give a learning rate such as 1.0", "target_epsilon": "give a privacy budget such as 1.0"},
        )
        counts = {
            "epochs": "give the number of passes over the data",
            "batch_size": "give the number of examples a step",
            "microbatch_size": "give the examples to process at once",
        }
        check_given(self, _checks.count, counts)
        if not 0 <= _checks.real("--momentum", self.momentum, "give a decay such as 0.9") < 1:
            raise UsageError(
                f"--momentum={self.momentum} must lie between 0 and 1 (1 excluded): 0.9 is usual, 0 for none"
            )
        check_holdout(self.holdout)
        check_seed(self.seed)
        if self.dp:
            self._check_privacy()
        elif self.ledger is not None:
            raise UsageError(
                "--ledger with --no-dp: a run without privacy has no total to state; leave one of them out"
            )

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
            if self.sampling != "truncated_poisson":
                raise UsageError(
                    f"--truncated-batch-size={self.truncated_batch_size} is of --sampling truncated_poisson: give both or none"
                )
