"""Every split that a recipe asks for exists: a draw that never gives every client enough samples
would end a job on the machine that was rented for it."""

import json
from typing import Any

import pytest

from idiolect.errors import UserError
from idiolect.papers import recipe as recipes
from idiolect.papers.cells import cells
from idiolect.papers.planner import without_data
from idiolect.runs.build import load_federation


@pytest.mark.heavy
@pytest.mark.parametrize("name", recipes.names())
def test_every_split_can_be_dealt(name: str) -> None:
    parts = ("data", "split", "seed")
    configs: dict[str, Any] = {
        json.dumps([cell.config[part] for part in parts], sort_keys=True): cell.config
        for cell in cells(recipes.read(name))
        if not cell.broken
    }
    refused = {}
    for key, config in configs.items():
        if not without_data(config):
            try:
                load_federation(config)
            except UserError as error:
                refused[key] = str(error)
    assert not refused
