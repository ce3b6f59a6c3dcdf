"""The terms of a federation are checked and survive JSON."""

from __future__ import annotations

import json

import pytest

from idiolect.deploy.terms import FederationTerms
from idiolect.errors import UserError
from tests.deploy.local_federation import EXPERIMENT


@pytest.mark.parametrize(
    "settings",
    [{"clients": 0}, {"minimum": 4}, {"arrivals": 0}, {"arrivals": 4}, {"timeout": 0.0}],
)
def test_terms_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(UserError):
        FederationTerms(**({"experiment": EXPERIMENT, "clients": 3} | settings))  # type: ignore[arg-type]


def test_terms_survive_json() -> None:
    terms = FederationTerms(EXPERIMENT, 3, window=2.5, nodes={"18446744073709551615": 2})
    assert FederationTerms(**json.loads(json.dumps(terms.as_dict()))) == terms
