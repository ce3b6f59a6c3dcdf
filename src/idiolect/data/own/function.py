"""A function of the user's own that returns the clients: `--data file.py:function`."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from idiolect.core import own_code
from idiolect.data.federation import Federation
from idiolect.data.own.source import OwnSource
from idiolect.errors import UserError


class OwnFunction(OwnSource):
    """The section {"name": "file.py:function", option: value, …}. The function is called with the
    options, and with `seed` if it takes that."""

    shape = None  # known only once the code is run
    names_clients = True
    stamp = ""

    def __init__(self, section: Mapping[str, Any]):
        self.name = own_code.whole(str(section["name"]))
        self.options = {str(key): value for key, value in section.items() if key != "name"}

    def resolved(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}

    def federation(self, seed: int, allow_code: Collection[str]) -> Federation:
        """What the function returns; it is called only if `allow_code` names it."""
        make = own_code.load_function(self.name, "data", allow_code)
        try:
            takes = "seed" in inspect.signature(make).parameters
            made = make(**self.options, **({"seed": seed} if takes else {}))
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # own code may fail in every way
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise UserError(f"data '{self.name}' failed: {told}; mend the function") from error
        if isinstance(made, list | tuple):
            made = Federation.from_arrays(made)
        if not isinstance(made, Federation):
            raise UserError(
                f"data '{self.name}' returned {type(made).__name__}; return a Federation, or one"
                " mapping of arrays per client"
            )
        made.info.update(source=self.resolved(), seed=seed)
        return made
