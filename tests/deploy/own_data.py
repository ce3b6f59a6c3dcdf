"""`--data tests.deploy.own_data:load`: each site makes its own samples."""

from __future__ import annotations

from tests.deploy.offline import site_data


def load(client: int):  # type: ignore[no-untyped-def]
    return site_data(client)
