"""Settings whose keys are also attributes."""

from typing import Any


class DictConfig(dict[str, Any]):
    """A dict, and so are the dicts in it."""

    def __init__(self, content: dict[str, Any] | None = None):
        super().__init__()
        self.update(content or {})

    def __setitem__(self, key: str, value: Any) -> None:
        plain = isinstance(value, dict) and not isinstance(value, DictConfig)
        super().__setitem__(key, DictConfig(value) if plain else value)

    def update(self, content: dict[str, Any]) -> None:  # type: ignore[override]
        for key, value in content.items():
            self[key] = value

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delattr__(self, key: str) -> None:
        del self[key]


class OmegaConf:
    @staticmethod
    def to_object(settings: DictConfig) -> dict[str, Any]:
        return {
            k: OmegaConf.to_object(v) if isinstance(v, DictConfig) else v
            for k, v in settings.items()
        }
