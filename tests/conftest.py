"""Every test runs with JAX's key-reuse checker, and in the rooms that are ours alone with strict promotion."""

import gc
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jaxtyping
import pytest

# Annotations are executed, but for those of equations: JAX's own types are `Any` there, and called by the hundred thousand.
_rooms = sorted({path.stem for path in (Path(__file__).parents[1] / "jaxdp").iterdir()} - {"jaxprs"})
jaxtyping.install_import_hook([f"jaxdp.{room}" for room in _rooms], "typechecking.checked")

# Tests compile more than they compute. CI runs slow ones of what users compute with XLA_FLAGS="", that is, optimised as usual.
_quick_to_compile = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_quick_to_compile += " --xla_cpu_parallel_codegen_split_count=1"  # both processors are busy
if jax.__version_info__ < (0, 11):  # newer XLA has one way to emit fusions, and stops at flags that it doesn't know
    _quick_to_compile += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _quick_to_compile)

# Where tests run in the background, a shell has them ignore Ctrl-C; what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Many tests and the processes that they start compile the same programs. What is set here where a session starts reaches its
# workers, which share what they compile, until its end.
_compiled = tempfile.TemporaryDirectory(prefix="jaxdp-compiled-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _compiled.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


# By the clock, in seconds: CI has to end in time on a slow machine, too. Slow tests that would begin later are skipped by name,
# those of minutes so much sooner.
_begin_until = os.environ.get("JAXDP_SLOW_TESTS_BEGIN_UNTIL")
_MINUTES = 180


@pytest.hookimpl(tryfirst=True)  # before those that are marked slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of minutes come first, where all are run: begun last, one would keep one processor busy and leave the others idle.

    Where there is no time for all, files come in another order in each run, so that each has its turn.
    """
    for item in items:
        if (but := item.get_closest_marker("slow_but")) and item.callspec.id not in but.args:  # pyright: ignore[reportAttributeAccessIssue]
            item.add_marker("slow")
    if not _begin_until:
        items.sort(key=lambda item: not any(mark.args for mark in item.iter_markers("slow")))
    else:  # which differs from run to run, and so does what is skipped; all workers have the same
        files = sorted({str(item.path) for item in items})
        order = dict(zip(random.Random(_begin_until).sample(files, len(files)), range(len(files)), strict=True))
        items.sort(key=lambda item: order[str(item.path)])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a slow test whose time is over."""
    marks = list(item.iter_markers("slow"))
    if _begin_until and marks and time.time() > float(_begin_until) - _MINUTES * any(mark.args for mark in marks):
        pytest.skip(f"{item.nodeid} would begin too late for this run")


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector needn't look at it again and again."""
    gc.freeze()


OURS = ("clipping", "mechanisms", "noise", "sampling")  # optax and flax promote dtypes on their own


@pytest.fixture(autouse=True)
def _strict_jax(request: pytest.FixtureRequest) -> Iterator[None]:
    strict = Path(str(request.path)).parent.name in OURS
    with jax.debug_key_reuse(True):
        if not strict:
            yield
            return
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
            yield


@pytest.fixture
def tfds_dir() -> Path:
    """A folder with a real prepared TFDS data set: 512 + 128 digits of MNIST."""
    return Path(__file__).parent / "fixtures" / "tfds"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded data sets are cached in a folder of the test session, not in the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """jaxdp as users have it: nobody executes its annotations, so that what is of another type reaches its own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _without_self_check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models that commands train have their gradients checked once, in test_self_check.py, and not before every run."""
    if Path(str(request.path)).parent.name in ("commands", "runs"):
        from jaxdp.dpsgd import _step  # here, where its annotations are executed already

        monkeypatch.setattr(_step, "self_check", lambda *_: None)
