"""The models that commands train have their gradients checked once, in test_self_check.py, and not before every run here."""

import pytest

from jaxdp.dpsgd import _step


@pytest.fixture(autouse=True)
def _without_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "self_check", lambda *_: None)
