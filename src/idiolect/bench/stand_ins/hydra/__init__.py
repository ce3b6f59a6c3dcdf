"""A main program with settings from a YAML file and `key.key=value` from the command line."""

import importlib
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import yaml


def main(config_path: str, config_name: str, **_: Any) -> Callable[..., Callable[[], Any]]:
    def decorate(program: Callable[[Any], Any]) -> Callable[[], Any]:
        file = Path(program.__code__.co_filename).parent / config_path / f"{config_name}.yaml"

        def start() -> Any:
            settings: Any = importlib.import_module("omegaconf").DictConfig(
                yaml.safe_load(file.read_text(encoding="utf-8"))
            )
            for text in sys.argv[1:]:
                name, _, value = text.partition("=")
                *groups, key = name.split(".")
                if groups[:1] != ["hydra"]:  # settings of hydra itself
                    reduce(getattr, groups, settings)[key] = yaml.safe_load(value)
            return program(settings)

        return start

    return decorate
