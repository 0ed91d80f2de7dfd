"""Short names: each is its class's own."""

import pytest

import jaxdp
from jaxdp.sampling import NAMES, kind_of, words_of_batch_size


def test_each_short_name_is_its_classs_own_and_an_unknown_one_has_no_words() -> None:
    assert [kind_of(name).name for name in NAMES] == list(NAMES) == ["poisson", "truncated_poisson", "shuffle"]
    assert [words_of_batch_size(name) for name in NAMES] == [
        " expected (Poisson)",
        " expected (truncated Poisson)",
        " (shuffled)",
    ]
    assert words_of_batch_size(None) == words_of_batch_size("alphabetical") == ""
    with pytest.raises(jaxdp.UsageError, match="sampling='alphabetical' is not known"):
        kind_of("alphabetical")
