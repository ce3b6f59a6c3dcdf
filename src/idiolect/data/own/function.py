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
    options, and with `seed` if it takes that. `metric` is ours unless the function takes it."""

    shape = None  # known only once the code is run
    names_clients = True
    stamp = ""

    def __init__(self, section: Mapping[str, Any]):
        self.name = own_code.whole(str(section["name"]))
        self.options = {str(key): value for key, value in section.items() if key != "name"}
        if own_code.is_own(metric := self.options.get("metric")):
            self.options["metric"] = own_code.whole(str(metric))

    def resolved(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}

    def federation(self, seed: int, allow_code: Collection[str]) -> Federation:
        """What the function returns; it is called only if `allow_code` names it."""
        make = own_code.load_function(self.name, "data", allow_code)
        options, metric = dict(self.options), None
        with own_code.running(f"data '{self.name}'"):
            takes = inspect.signature(make).parameters
            if "metric" not in takes:
                metric = options.pop("metric", None)
            made = make(**options, **({"seed": seed} if "seed" in takes else {}))
        if isinstance(made, list | tuple):
            made = Federation.from_arrays(made)
        if not isinstance(made, Federation):
            raise UserError(
                f"data '{self.name}' returned {type(made).__name__}; return a Federation, or one"
                " mapping of arrays per client"
            )
        if metric is not None:
            made = made.judged_by(str(metric))
        made.info.update(source=self.resolved(), seed=seed)
        return made
