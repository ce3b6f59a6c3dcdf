"""Local: every client trains alone from the common start. Nothing is sent.

A baseline of SPFL and of FedDWA; FedAS and PFLEGO do not compare with it. A collaboration that does
not beat it is not worth its messages.
"""

from dataclasses import dataclass

from idiolect.core.method import Down, Ids, Local, Net, Record, Server, SgdMethod, Tree, Ups


@dataclass(frozen=True)
class LocalOnly(SgdMethod):
    """Every client trains alone from the common start; nothing is sent."""

    name = "local"
    paper = "baseline of SPFL and FedDWA"
    personal_part = "the whole model"
    traffic = "0"

    def server_init(self, net: Net, start: Tree, clients: Ids) -> Record:
        return {}

    def client_init(self, start: Tree, local: Local) -> Record:
        return {"model": start}

    def download(self, server: Server, who: Ids) -> Down:
        return Down()

    def fit(self, down: Record, mine: Record, local: Local) -> tuple[Record, Record]:
        return {}, {"model": self.train(local, mine["model"])}

    def aggregate(self, server: Server, ups: Ups) -> None:
        """Nothing was sent."""

    def personal(self, down: Record, mine: Record) -> Tree:
        return mine["model"]
