"""The options of `jaxdp tune`: those of `jaxdp train`, and what is searched."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ... import _checks
from ..._errors import UsageError
from .._effects import Effect
from .._options import flag
from .._sampling import adjacency_of
from ..train import TrainOptions

if TYPE_CHECKING:
    from ...accounting import RandomSearch

_AROUND = 4.0  # by which factor the usual value is gone below and above
_PARTS = 5  # the usual batch is at most one of them: of batches of half the data the RDP accountant can't tell enough
_LARGEST = 1e6
_SET_BY_THE_SEARCH = (
    ("noise_multiplier", "whose --target-epsilon sets the noise"),
    ("accountant", "which the RDP accountant alone can account"),
    ("sampling", "whose runs take Poisson sampling"),
    ("truncated_batch_size", "whose runs take Poisson sampling"),
    ("folds", "which compares models on one part of the records"),
    ("fold", "which compares models on one part of the records"),
    ("patience", "whose epsilon covers the records held back, too"),
    ("keep", "whose epsilon covers the records held back, too"),
    ("plateau_factor", "whose epsilon covers the records held back, too"),
    ("plateau_patience", "whose epsilon covers the records held back, too"),
    ("audit_canaries", "which leaves one of several models"),
    ("canaries", "which leaves one of several models"),
    ("bounds_noise", "which would estimate bounds in each run, where --bounds and --bounds-file declare them"),
    ("distributed", "which makes its runs in one process"),
    ("coordinator", "which makes its runs in one process"),
    ("num_processes", "which makes its runs in one process"),
    ("process_id", "which makes its runs in one process"),
)
_EFFECTS = (
    *(Effect((name,), lambda _: False, lambda _, why=why: f"on jaxdp tune, {why}") for name, why in _SET_BY_THE_SEARCH),
    *(
        Effect(
            (searched,),
            lambda search, fixed=fixed: getattr(search, fixed) is None,
            lambda search, fixed=fixed: f"beside {flag(fixed)}, which gives all runs one",
        )
        for searched, fixed in (("lrs", "lr"), ("clip_norms", "clip_norm"), ("batch_sizes", "batch_size"))
    ),
)


@dataclass(frozen=True, kw_only=True)
class TuneOptions(TrainOptions):
    """Search for a learning rate, a clip norm and a batch size, and pay for the search."""

    runs: float = 5.0
    """how many runs to make on average; their number is drawn, and more of them cost more noise"""
    distribution: Literal["poisson", "geometric", "logarithmic"] = "poisson"
    """of the number of runs: poisson is the cheapest, and draws none at all once in e^runs; the others draw one or more"""
    lrs: tuple[float, float] | None = None
    """the least and the largest learning rate, between which each run draws its own evenly on a log scale; by default a quarter
    of the usual one and four times it. --lr gives all runs one"""
    clip_norms: tuple[float, float] | None = None
    """the same of clip norms; --clip-norm gives all runs one"""
    batch_sizes: tuple[int, ...] = ()
    """batch sizes, of which each run draws one; by default half of the usual one, it, and twice it. --batch-size gives all runs
    one"""
    score_noise: float | None = None
    """standard deviation of the noise on the number by which models are compared, which adds one a record at most; by default
    five times what hides a record in a run, so that comparing adds about two hundredths of epsilon to it"""
    effects: ClassVar[tuple[Effect, ...]] = (*TrainOptions.effects, *_EFFECTS)

    def check(self) -> None:
        """Refuse what `jaxdp train` refuses, and a search that can't be made."""
        if not self.dp:
            raise UsageError(
                "--no-dp has no effect on jaxdp tune: a search without privacy costs none and needs no accounting"
            )
        super().check()
        if self.schedule == "plateau":
            raise UsageError(
                "--schedule=plateau has no effect on jaxdp tune, whose epsilon covers the records held back, too: give cosine, "
                "or leave it out"
            )
        if self.adjacency == "replace_one":
            raise UsageError(
                "--adjacency=replace_one has no effect on jaxdp tune, which the RDP accountant alone can account: leave it out, "
                "or give replace_special"
            )
        if not 1 <= _checks.positive("--runs", self.runs, "give the mean number of runs, such as 5") <= 1e6:
            raise UsageError(
                f"--runs={self.runs} must be at least 1, and a million at most: give the mean number of runs, such as 5"
            )
        if self.score_noise is not None:
            noise = _checks.positive("--score-noise", self.score_noise, "give the noise in records, such as 50")
            if not 1e-3 <= noise <= 1e6:
                raise UsageError(f"--score-noise={noise:g} must lie between 0.001 and 1e6 records: such as 50")
        for name in ("lrs", "clip_norms"):
            _check_range(flag(name), getattr(self, name))
        for end in self.clip_norms or ():
            _checks.clip_norm(end)
        if any(size < 1 for size in self.batch_sizes) or len(set(self.batch_sizes)) < len(self.batch_sizes):
            sizes = " ".join(map(str, self.batch_sizes))
            raise UsageError(f"--batch-sizes {sizes} must be different numbers of examples: such as 2048 4096")

    @property
    def relation(self) -> str:
        """Which data sets are neighbours."""
        return adjacency_of(self.adjacency, self.sampling)

    @property
    def search(self) -> "RandomSearch":
        """How many runs there are, and what choosing one of them costs."""
        from ...accounting import RandomSearch

        return RandomSearch(mean=self.runs, distribution=self.distribution)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The ends between which learning rates and clip norms are drawn; the same twice where all runs have one."""
        usual = self._usual
        found = {}
        for name, given in (("lr", self.lrs), ("clip_norm", self.clip_norms)):
            one = getattr(self, name)
            around = (usual[name] / _AROUND, usual[name] * _AROUND)
            found[name] = (one, one) if one is not None else tuple(given or around)
        return found

    def sizes(self, num_examples: int) -> tuple[int, ...]:
        """The batch sizes of which one is drawn."""
        if self.batch_size is not None:
            return (self.batch_size,)
        if too_large := [size for size in self.batch_sizes if size > num_examples]:
            raise UsageError(
                f"--batch-sizes has {too_large[0]}, and there are {num_examples} training examples: give at most these"
            )
        usual = min(self._usual["batch_size"], max(1, num_examples // _PARTS))
        return self.batch_sizes or tuple(sorted({max(1, usual // 2), usual, min(2 * usual, num_examples)}))

    @property
    def budget(self) -> float:
        """The ε of the whole search."""
        from ..train._plan import DEFAULT_TARGET_EPSILON  # which needs JAX

        return self.target_epsilon or self._usual["target_epsilon"] or DEFAULT_TARGET_EPSILON

    @property
    def epochs_of_each(self) -> int:
        """Passes over the data of each run."""
        return self.epochs or self._usual["epochs"]

    @property
    def _usual(self) -> dict[str, Any]:
        return self.recipe_in_use.options(self.optimizer)

    def of_a_run(self, **changes: Any) -> TrainOptions:
        """The options of one run of the search."""
        own = {field.name: getattr(self, field.name) for field in fields(TrainOptions)}
        return TrainOptions(**{**own, "target_epsilon": None, "ledger": None, **changes})


def _check_range(name: str, ends: tuple[float, float] | None) -> None:
    if ends is None:
        return
    for end in ends:
        if _checks.positive(name, end, "give the least and the largest, such as 0.25 4") > _LARGEST:
            raise UsageError(f"{name}={end:g} is above {_LARGEST:g}: give the least and the largest, such as 0.25 4")
    if ends[0] > ends[1]:
        raise UsageError(f"{name} {ends[0]:g} {ends[1]:g}: give the least first, and then the largest")
