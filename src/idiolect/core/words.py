"""A setting that is several of a few words, each declared as a switch: `train,fisher`."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from idiolect.core.fields import Checked
from idiolect.errors import did_you_mean


@dataclass(frozen=True)
class Words(Checked):
    """Base of such a setting. Short form: the words, with commas."""

    short: ClassVar[type | None] = str

    @classmethod
    def of(cls, value: Any) -> Self:
        if value is None:
            return cls()
        if isinstance(value, str):
            value = [word for word in value.replace(" ", "").split(",") if word]
        if isinstance(value, list | tuple):
            known = [field.name for field in fields(cls)]
            for word in value:
                if word not in known:
                    raise did_you_mean(str(word), known, cls.section)
            value = dict.fromkeys(value, True)
        return super().of(value)

    def as_dict(self) -> dict[str, Any]:
        return {name: True for name, wanted in super().as_dict().items() if wanted}

    def __str__(self) -> str:
        return ",".join(self.as_dict())

    def __bool__(self) -> bool:
        return bool(self.as_dict())
