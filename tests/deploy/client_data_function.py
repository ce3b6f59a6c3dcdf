"""`--data tests.deploy.client_data_function:load`: each site makes its own samples."""

from __future__ import annotations

from tests.deploy.local_federation import site_data


def load(client: int):  # type: ignore[no-untyped-def]
    return site_data(client)
