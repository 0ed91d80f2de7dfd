"""How much work a privacy loss distribution may be: coarser, and said to be, or refused; never hours and gigabytes."""

import json
import subprocess
import sys
from typing import Any

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant

import jaxdp
from jaxdp import UsageError
from jaxdp.accounting import Ledger, _grid, accountants_of, event_epsilon, gaussian_event, poisson_event
from jaxdp.accounting._grid import COARSEST, MOST_POINTS, TooLargeError, affordable_interval, span

ADDED = "add_or_remove_one"
_POINT = 1e-4


@pytest.mark.parametrize("sigma", [0.001, 0.01, 0.1, 0.3, 0.5, 1.0, 5.0])
def test_no_distribution_has_more_points_than_there_may_be(sigma: float) -> None:
    for rate in (1e-4, 0.004, 0.1, 1.0):
        for steps in (1, 3510, 5 * 10**5):
            event = poisson_event(noise_multiplier=sigma, sample_rate=rate, steps=steps)
            least = span(event, ADDED) / MOST_POINTS
            if least > 2 * COARSEST:
                with pytest.raises(TooLargeError, match="take the RDP accountant"):
                    affordable_interval(event, ADDED, _POINT)
            elif least <= COARSEST:
                assert least <= affordable_interval(event, ADDED, _POINT) <= max(_POINT, 2 * least)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"), [(1.3, 0.004, 3600), (1.0, 0.05, 200), (2.0, 1.0, 50), (0.6, 0.01, 5)]
)
def test_the_estimate_covers_the_distribution_that_is_built(sigma: float, rate: float, steps: int) -> None:
    event = poisson_event(noise_multiplier=sigma, sample_rate=rate, steps=steps)
    built: Any = PLDAccountant(value_discretization_interval=2e-3).compose(event)._pld
    points = max(pmf.size for pmf in (built._pmf_remove, built._pmf_add))
    assert points * 2e-3 <= span(event, ADDED) <= 60 * points * 2e-3


def test_usual_runs_are_as_fine_as_ever() -> None:
    for sigma, rate, steps in ((1.1, 256 / 60_000, 3510), (0.6, 0.004, 3510), (1.0, 0.01, 10_000), (4.0, 0.1, 3000)):
        event = poisson_event(noise_multiplier=sigma, sample_rate=rate, steps=steps)
        assert affordable_interval(event, ADDED, _POINT) == _POINT


def test_a_coarse_figure_is_an_upper_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_grid, "MOST_POINTS", 2**13)
    event = gaussian_event(noise_multiplier=1.01, times=20)
    spent = event_epsilon(event, delta=1e-5, accountant="pld")
    assert spent.interval is not None
    exact = dp.get_epsilon_gaussian(1.01 / 20**0.5, 1e-5)
    assert exact <= spent.epsilon < 1.01 * exact
    assert event_epsilon(gaussian_event(noise_multiplier=50.0), delta=1e-5, accountant="pld").interval is None
    run = jaxdp.DPSGD(
        num_examples=100,
        expected_batch_size=100,
        steps=20,
        clip_norm=1.0,
        noise_multiplier=1.01,
        sampling="shuffle",
        adjacency="replace_special",
    )
    assert "an upper bound, in coarse steps of" in run.statement(delta=1e-5)
    total = Ledger(adjacency="replace_special").add(run.event, "this run").total(delta=1e-5, accountant="pld")
    assert "an upper bound, in coarse steps of" in total.in_words()


def test_what_is_too_much_to_compute_is_left_to_the_accountant_that_has_a_formula() -> None:
    event = gaussian_event(noise_multiplier=1.0, times=4 * 10**6)
    assert accountants_of(event) == ("rdp", "classic")
    assert accountants_of(gaussian_event(noise_multiplier=1e-300)) == ("rdp", "classic")
    long = poisson_event(noise_multiplier=1e3, sample_rate=0.01, steps=2**24)
    assert accountants_of(long) == ("rdp", "classic")
    with pytest.raises(UsageError, match="16,777,216 releases are more than the PLD accountant composes"):
        event_epsilon(long, delta=1e-5, accountant="pld")
    dense = poisson_event(noise_multiplier=2.0, sample_rate=0.01, steps=10**6)
    assert accountants_of(dense) == ("rdp", "pld", "classic")
    with pytest.raises(UsageError, match="more than the PLD accountant's"):
        event_epsilon(event, delta=1e-5, accountant="pld")
    assert Ledger().add(event, "all of it").total(delta=1e-5).parts[0][0].accountant == "rdp"


_IN_TWO_GIBIBYTES = """
import json, resource, sys
import jaxdp
from jaxdp import accounting, cli
resource.setrlimit(resource.RLIMIT_DATA, (2 * 2**30, 2 * 2**30))
found = []
for line in json.loads(sys.argv[1]):
    try:
        cli.main(line)
        found.append("answered")
    except SystemExit as end:
        found.append("refused" if end.code == 2 else f"code {end.code}")
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))  # of this process alone
print(json.dumps([found, peak]))
"""


@pytest.mark.slow
def test_every_question_is_answered_or_refused_within_two_gibibytes() -> None:
    asked = {
        "epsilon --noise-multiplier 1e-300": "refused",
        "epsilon --noise-multiplier 0.001": "refused",
        "epsilon --noise-multiplier 0.01": "refused",
        "epsilon --noise-multiplier 0.1": "refused",
        "epsilon --noise-multiplier 0.35": "answered",
        "epsilon --noise-multiplier 1.1 --steps 1000000000": "refused",
        "epsilon --noise-multiplier 1.1 --steps 10000000": "answered",
        "noise --epsilon 1e6": "answered",
        "noise --epsilon 0.01": "answered",
        "steps --epsilon 1e6 --noise-multiplier 1": "answered",
        "steps --epsilon 3 --noise-multiplier 1000": "answered",
        "batch-size --epsilon 1e6 --noise-multiplier 1 --steps 1000": "answered",
    }
    lines = json.dumps([[*line.split(), "--json"] for line in asked])
    ran = subprocess.run([sys.executable, "-c", _IN_TWO_GIBIBYTES, lines], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found, kibibytes = json.loads(ran.stdout.splitlines()[-1])
    assert found == list(asked.values())
    assert kibibytes < 2 * 2**20


@pytest.mark.parametrize("accountant", ["rdp", "classic"])
def test_noise_beyond_what_floats_can_square_is_refused(accountant: str) -> None:
    with pytest.raises(UsageError, match="floats can't"):
        event_epsilon(
            poisson_event(noise_multiplier=1e300, sample_rate=0.01, steps=10), delta=1e-5, accountant=accountant
        )
