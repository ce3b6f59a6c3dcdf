"""How a federation is run, apart from the method's settings; written to `flower/terms.json`."""

from dataclasses import dataclass, field

from idiolect.core.fields import Checked, hyper
from idiolect.errors import UserError


@dataclass(frozen=True)
class FederationTerms(Checked):
    """Who may take part and how long the server waits for them."""

    experiment: str  # random name, hexadecimal: clients keep one state file per experiment
    clients: int  # ids are 0..clients-1
    minimum: int = hyper(0, "clients needed to begin; 0: all", min=0)
    arrivals: int = hyper(1, "answers needed to aggregate a round", min=1)
    window: float = hyper(0.0, "seconds a round waits; 0: for all, if asynchronous 60", min=0)
    timeout: float = hyper(600.0, "seconds until one client's answer is given up", above=0)
    repeat: float = hyper(60.0, "seconds until a client that has not answered is asked again; "
                          "then twice as long, and so on", above=0)  # fmt: skip
    patience: float = hyper(3600.0, "seconds the server waits for enough clients", above=0)
    poll: float = hyper(0.2, "seconds between looks for new answers", above=0)
    save_models: bool = False  # write what all share to RUN/models/last at the end
    nodes: dict[str, int] = field(default_factory=dict)  # Flower node id -> client id, by key

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients < 1:
            raise UserError(f"clients must be at least 1, not {self.clients}")
        for option, needed in (("min-clients", self.minimum), ("arrivals", self.arrivals)):
            if needed > self.clients:
                raise UserError(f"--{option} must be at most {self.clients}, the number of clients")
