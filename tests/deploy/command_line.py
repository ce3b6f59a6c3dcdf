"""The command line, with the deployment commands, as a child process of a test. TAKEN_PORT is the
first port it finds free, though it is not."""

import os

from idiolect.cli import app as cli
from idiolect.cli import deploy as deploy_cli
from idiolect.deploy import processes


def _taken_first(taken: int) -> None:
    free = processes.free_port
    answers = iter([taken])
    processes.free_port = lambda: next(answers, None) or free()


if __name__ == "__main__":
    if port := os.environ.get("TAKEN_PORT"):
        _taken_first(int(port))
    known = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    if "server" not in known:
        deploy_cli.register(cli.app)
    cli.main()
