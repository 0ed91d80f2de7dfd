"""The fuzzer of command lines, for a minute; by hand it goes on for longer."""

import pytest
from fuzz_commands import fuzz

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*no record of some class")]


def test_a_random_command_line_gets_a_right_answer_or_one_of_our_errors() -> None:
    outcomes = fuzz(40, seed=0)
    print(dict(sorted(outcomes.items())))
    assert {outcome.split(": ")[1] for outcome in outcomes} >= {"answer", "planned", "refused"}
