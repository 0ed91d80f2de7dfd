"""The folder of a run: what is in it, who may see it, and how it is written so that a kill never leaves half a file.

What may be published:
config.json      options, plan, versions, the nonce that names the run's noise
statement.txt    the privacy of the run in plain English; statement.json for programs, with the ledger
epsilon.png      epsilon against steps, by each accountant
model/           the final model, without keys
summary.json     what is covered by epsilon, or public, of the results, and with --patience when the run ended; written last:
                 with it the run is finished

What epsilon doesn't cover, in private/, which nobody else may read (mode 700):
run.json         the seed if one was given, and by what the canaries are known again; while the run is under way, a secret, from
                 which keys follow without a seed, the data's fingerprint under it, and by what config.json is known again
checkpoints/     while the run is under way, the two newest, with its keys; with --keep best, best/ has that epoch's model
metrics.jsonl    one line an epoch; metrics.png shows them
canaries.npz     with --audit-canaries, the examples that were planted, and which of them the model was trained on
audit/           what `jaxdp audit` found
summary.json     all results, losses and times too; without privacy, model/ lies here as well
lock             held while a process runs here
"""

import hashlib
import hmac
import itertools
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from .._errors import UsageError
from ._lock import locked

PRIVATE = "private"
MAY_NOT_READ = "ask its owner for it, or for the right to read it"
_METRICS = f"{PRIVATE}/metrics.jsonl"
_SECRETS = f"{PRIVATE}/run.json"
_ROOM_NEEDED = 64 * 2**20
_SEAL = "sha256"
_CANARIES = "canaries"  # the SHA-256 of their file
_CONFIGS = "configs"  # what each config.json that the run wrote has for a SHA-256
_NETWORK = "network"  # how config.json names the model's description, and its task's
_RESULTS = f"{PRIVATE}/summary.json"
TRIALS = "trials"  # the runs of a search, in PRIVATE
_OF_A_RUN = (  # of one that has begun
    _METRICS,
    _RESULTS,
    *(f"{PRIVATE}/{name}" for name in ("predictions.npy", "votes.npy", "checkpoints", "best", TRIALS)),
    *(f"{PRIVATE}/{name}-coordinates.npy" for name in ("public", "private")),
)


def new_path(name: str) -> Path:
    """Where a run of that name that begins now goes; a number tells it from another that begins in the same second."""
    return first_free(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")


def first_free(path: Path, suffix: str = "") -> Path:
    """`path` with its suffix, or the first of it with a number between the two that isn't there yet."""
    names = itertools.chain([path.name], (f"{path.name}-{i}" for i in itertools.count(2)))
    return next(each for each in (path.with_name(name + suffix) for name in names) if not each.exists())


def still_new(path: Path, given: Path | None, name: str) -> Path:
    """`path`, where a run was said to go, or elsewhere if nobody has `given` it and another run of its second has it by now."""
    return path if given is not None or not path.exists() else new_path(name)


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Reading what a run wrote to `path`: raises `UsageError` where it has another shape, if need be in another error's place."""
    try:
        yield
    except UsageError as error:
        if not isinstance(error.__cause__, LookupError | TypeError):
            raise
        raise _not_as_written(path, error.__cause__) from error
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise _not_as_written(path, error) from error


def _not_as_written(path: Path, error: Exception) -> UsageError:
    said = (str(error).splitlines() or [""])[0][:200]
    return UsageError(
        f"{path} is not as a run writes it ({type(error).__name__}: {said}): bring back the run's own folder"
    )


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.private = path / PRIVATE
        self.checkpoints = self.private / "checkpoints"
        self.best = self.private / "best"
        self.plot = self.private / "metrics.png"
        self.epsilon_plot = path / "epsilon.png"

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new folder, made and tried for writing.

        Raises:
            UsageError: where there is a run already or anything else, no right to write, or less than 64 MiB of room.
        """
        folder = cls(path)
        folder.refuse_begun()
        try:
            path.mkdir(parents=True, exist_ok=True)
            ours = (
                PRIVATE,
                _beside(path / "config.json").name,
            )  # the latter of one that was killed where it was to begin
            if (found := next((each for each in path.iterdir() if each.name not in ours), None)) is not None:
                raise UsageError(
                    f"--output={path} holds {found.name}, which is no run's: give a new folder, or an empty one"
                )
            if (left := next((name for name in _OF_A_RUN if (path / name).exists()), None)) is not None:
                raise UsageError(
                    f"--output={path} holds {left} of another run, which would be taken for this one's: give a new "
                    "folder, or an empty one"
                )
            with tempfile.TemporaryFile(dir=path) as file:
                file.write(b"room?")
        except OSError as error:
            raise UsageError(f"--output={path} can't be written ({error.strerror}): give a folder that can") from error
        free = shutil.disk_usage(path).free
        if free < _ROOM_NEEDED:
            raise UsageError(
                f"--output={path} has {free / 2**20:.0f} MiB of room, and a run may need {_ROOM_NEEDED // 2**20}: "
                "free some, or give a folder elsewhere"
            )
        return folder

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """The folder of a run that was started; raises `UsageError` where there is none."""
        if not (path / "config.json").exists():
            of_folds = any(path.glob("fold-*/config.json"))
            fix = (
                "it holds those of --folds, which the same command as before goes on with; or give"
                if of_folds
                else "give"
            )
            raise UsageError(f"{path} holds no run (there is no config.json): {fix} the folder that a run made")
        return cls(path)

    def model(self, *, private: bool) -> Path:
        """Where the final model lies: to be published, or not, as one that was trained without privacy."""
        return (self.private if private else self.path) / "model"

    @contextmanager
    def locked(self, go_on: str | None = None) -> Iterator[None]:
        """Keep other processes out; raises `UsageError` where one is here, with how to go on once it isn't."""
        self.make_private()
        with locked(self.private / "lock", self.path, go_on or f"go on with --resume {self.path}"):
            yield

    def make_private(self) -> None:
        """The folder of what isn't to be shared, readable by its owner alone from the start; what is to be erased lies in it."""
        try:
            self.private.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.private.chmod(0o700)
        except OSError as error:
            raise UsageError(f"{self.private} can't be written ({error.strerror}): give a folder that can") from error
        for each in (self.checkpoints, self.best, self.private / TRIALS):
            if each.is_symlink():
                raise UsageError(
                    f"{each} is a link, and what lies behind it, keys among it, would outlast the run: move that here in the "
                    "link's place; or let the whole folder of the run lie elsewhere"
                )

    def refuse_begun(self) -> None:
        """Refuse a folder in which a run has begun."""
        if (self.path / "config.json").exists():
            raise UsageError(
                f"--output={self.path} holds a run already: go on with it by --resume {self.path}, or give another folder"
            )

    def begin(
        self,
        config: dict[str, Any],
        seed: int | None,
        fingerprint: Callable[[bytes], str],
        secret: bytes | None = None,
        canaries: bytes | None = None,
    ) -> None:
        """Write what a run is known by; with config.json, which comes last, it has begun.

        Args:
            config: what may be published of it.
            seed: the user's, or None.
            fingerprint: of the data, under a secret that is erased with it.
            secret: 32 bytes of the operating system's for this run alone; drawn here if not given.
            canaries: the content of its file of them, if there is one.
        """
        self.refuse_begun()
        secret = secrets.token_bytes(32) if secret is None else secret
        known = {"seed": seed, "secret": secret.hex(), "data_fingerprint": fingerprint(secret)}
        if canaries is not None:
            known[_CANARIES] = _digest(canaries)
        self._write_config(config, known)

    def rewrite_config(self, config: dict[str, Any]) -> None:
        """Write config.json anew; where a kill leaves the one before, that is known, too."""
        self._write_config(config, self._secrets())

    def _write_config(self, config: dict[str, Any], known: dict[str, Any]) -> None:
        text = _in_json(config)
        self.write_json(_SECRETS, {**known, _CONFIGS: [*known.get(_CONFIGS, []), _digest(text.encode())]})
        self.write_text("config.json", text)

    def check_config(self) -> None:
        """Refuse the config.json of what is under way that isn't as it was written, where no checkpoint's mark tells."""
        if _digest((self.path / "config.json").read_bytes()) not in self._secrets()[_CONFIGS]:
            raise UsageError(
                f"{self.path / 'config.json'} is not as it was written: the same keys under other options or on other data would "
                "let anyone subtract the noise; bring back the run's own file"
            )

    def check_canaries(self, content: bytes) -> None:
        """Refuse other canaries than the run was started with."""
        if self._secrets(finished=True).get(_CANARIES) != _digest(content):
            raise UsageError(
                f"the canaries in {self.private} are not those the run was started with: the run's folder is damaged. The "
                "same keys on other data would let anyone subtract noise, and an audit ask for other coins: bring its file back"
            )

    def check_data(self, fingerprint: Callable[[bytes], str], described: Mapping[str, Any]) -> None:
        """Refuse to go on with other data than the run was started with.

        Nor with the same data where parts of config.json are `described` otherwise now: encoded by other bounds, they are other
        inputs, and of another task they have another loss.
        """
        same = self._secrets()["data_fingerprint"] == fingerprint(self.secret)
        config, now = self.read_json("config.json"), json.loads(json.dumps(described))
        other = [name for name in now if config.get(name) != now[name]]
        if same and other == [_NETWORK]:
            raise UsageError(
                f"--resume {self.path}: the task of the data, such as the number of classes or the bounds of what is predicted, "
                "or the network that follows from it, is not that the run was started with: the same keys under another loss "
                "would let anyone subtract the noise. Bring it back, or start another run"
            )
        if not same or other:
            raise UsageError(
                f"--resume {self.path}: data, or the bounds by which they are encoded, are not those the run was started with: "
                "the same keys on other data would let anyone subtract the noise. Bring them back, or start another run"
            )

    @property
    def secret(self) -> bytes:
        """Under which the data's fingerprint is, until both are erased."""
        return bytes.fromhex(self._secrets()["secret"])

    @property
    def mark(self) -> str:
        """The mark that tells this run's checkpoints from any other's: configuration and data, under the run's secret."""
        stored = self._secrets()
        content = (self.path / "config.json").read_bytes() + stored["data_fingerprint"].encode()
        return hmac.new(bytes.fromhex(stored["secret"]), content, hashlib.sha256).hexdigest()

    def erase(self) -> None:
        """Forget keys and fingerprint, with all that a finished run has no use for; doing it again does no harm."""
        for each in (self.checkpoints, self.best):
            if each.exists():
                shutil.rmtree(each)
        kept = ("seed", _CANARIES)
        self.write_json(_SECRETS, {name: value for name, value in self._secrets(finished=True).items() if name in kept})

    def _secrets(self, *, finished: bool = False) -> dict[str, Any]:
        stored = self.read_json(_SECRETS)
        wanted = ("seed",) if finished else ("seed", "secret", "data_fingerprint", _CONFIGS)
        if not isinstance(stored, dict) or any(name not in stored for name in wanted):
            raise UsageError(f"{self.path / _SECRETS} lacks what the run needs to go on: the run's folder is damaged")
        return stored

    def options(self) -> dict[str, Any]:
        """The options that the run was started with, as plain values; without the seed for those who can't read private/."""
        options = dict(self.read_json("config.json")["options"])
        if os.access(
            self.path / _SECRETS, os.R_OK
        ):  # where it isn't there, or is somebody else's, there is nothing to say
            options["seed"] = self._secrets(finished=True)["seed"]
        return options

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return (self.path / "summary.json").exists()

    @property
    def is_trained(self) -> bool:
        """Whether model and results are there, and all that is left is to erase and to state."""
        return os.access(self.private / "summary.json", os.R_OK)

    def keep_results(self, summary: dict[str, Any]) -> None:
        """Write all results; with them the run is trained."""
        self.write_sealed_json(_RESULTS, summary, beside="config.json")

    def results(self) -> dict[str, Any]:
        """All results, to be stated: raises `UsageError` where they or config.json, by which they are, are not as written."""
        return self.read_sealed_json(_RESULTS, beside="config.json")

    def summary(self) -> dict[str, Any]:
        """The results of a finished run: all of them, or those that are published for those who can't read private/."""
        if self.is_trained:
            return self.results()
        with as_written(self.path / "summary.json"):
            return dict(self.read_json("summary.json"))

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file, all or nothing."""
        self.write_text(name, _in_json(content))

    def write_sealed_json(self, name: str, content: dict[str, Any], *, beside: str | None = None) -> None:
        """Write a JSON object with its own SHA-256, all or nothing: for what another digit damages and leaves readable.

        Where a file is named `beside` it, the two are known together.
        """
        self.write_json(name, {**content, _SEAL: self._seal(content, beside)})

    def read_sealed_json(self, name: str, *, beside: str | None = None) -> dict[str, Any]:
        """The content of what `write_sealed_json` wrote; raises `UsageError` where it is missing or damaged."""
        content = self.read_json(name)
        if not isinstance(content, dict) or content.pop(_SEAL, None) != self._seal(content, beside):
            either = "" if beside is None else f" or {beside}"
            raise UsageError(f"{self.path / name}{either} is not as it was written: the run's folder is damaged")
        return content

    def _seal(self, content: dict[str, Any], beside: str | None) -> str:
        with_it = b"" if beside is None else (self.path / beside).read_bytes()
        return _digest(json.dumps(content, sort_keys=True).encode() + with_it)

    def write_text(self, name: str, content: str) -> None:
        """Write a text file, all or nothing; for its owner alone in private/."""
        self.write_bytes(name, content.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file, all or nothing; for its owner alone in private/."""
        target = self.path / name
        temporary = _beside(target)
        try:
            with self._open(temporary, "wb") as file:
                file.write(content)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _open(self, path: Path, mode: str) -> IO[bytes]:
        if path.parent != self.private:
            return open(path, mode)
        self.make_private()
        return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))

    def read_json(self, name: str) -> Any:
        """The content of a JSON file; raises `UsageError` where it is missing or damaged."""
        try:
            return json.loads((self.path / name).read_text("utf-8"))
        except PermissionError as error:
            raise UsageError(f"{self.path / name} can't be read ({error.strerror}): {MAY_NOT_READ}") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path / name} can't be read ({error}): the run's folder is damaged") from error

    def metrics(self) -> list[dict[str, Any]]:
        """The epochs recorded so far; a line cut short by a kill is left out."""
        try:
            lines = (self.path / _METRICS).read_text("utf-8").splitlines()
        except (FileNotFoundError, PermissionError):
            return []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        return [record for record in records if isinstance(record, dict) and "step" in record]

    def keep_metrics(self, records: Iterable[dict[str, Any]]) -> None:
        """Make `records` all that is recorded."""
        self.write_text(_METRICS, "".join(json.dumps(record) + "\n" for record in records))

    def add_metrics(self, record: dict[str, Any]) -> None:
        """Record one more epoch."""
        with self._open(self.path / _METRICS, "ab") as file:
            file.write(f"{json.dumps(record)}\n".encode())


def _in_json(content: Any) -> str:
    return json.dumps(content, indent=2) + "\n"


def _beside(target: Path) -> Path:
    """Where a file is written before it is in its place."""
    return target.with_name(f".{target.name}.tmp")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def close_to_others(path: Path) -> None:
    """Take every right from all but the owner, down to the last file."""
    for each in (path, *path.rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
