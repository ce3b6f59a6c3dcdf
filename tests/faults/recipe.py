"""`idiolect recipe` whose workers are forks of it: they count writes in the same memory, and need
not import everything again."""

import ctypes
import importlib
import os
import signal
import sys
from types import SimpleNamespace
from typing import IO, Any

from idiolect.papers import worker_pool
from tests.faults.fork_server import idiolect


class ForkedProcess:
    """What `subprocess.Popen` makes, as far as workers need it: a program with three streams."""

    def __init__(self, program: list[str], stderr: IO[str], **_: Any) -> None:
        hear, answers = os.pipe()
        orders, tell = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _become(program[-1], orders, answers, stderr.fileno(), (hear, tell))
        for end in (orders, answers):
            os.close(end)
        self.stdin, self.stdout = os.fdopen(tell, "w"), os.fdopen(hear)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become(module: str, stdin: int, stdout: int, stderr: int, others: tuple[int, ...]) -> None:
    """Run a module as a program of its own would: own streams, own signals."""
    code = 1
    try:
        ctypes.CDLL(os.environ["LD_PRELOAD"]).fault_join()
        for end in others:
            os.close(end)
        for number, stream in enumerate((stdin, stdout, stderr)):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(n, "rww"[n], closefd=False) for n in range(3)
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        importlib.import_module(module).main()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(words: list[str]) -> int:
    # Only here: git and other programs are started as ever.
    worker_pool.subprocess = SimpleNamespace(Popen=ForkedProcess, PIPE=None)
    return idiolect(words)
