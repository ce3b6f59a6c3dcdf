"""Flower's SuperLink behind `loopback_guard`; takes the options of `flower-superlink`.

`python -m idiolect.deploy.private_superlink`, as `idiolect server` starts it. The hook is that of
the pinned version of Flower: its extensions put middleware in front of all three interfaces.
"""

from __future__ import annotations

from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware  # type: ignore[import-not-found]

from idiolect.deploy import loopback_guard


def main() -> None:
    loopback_guard.check_kernel()
    extensions.get_middleware = lambda: (Middleware(loopback_guard.OnlyThisUser),)
    flower_superlink()


if __name__ == "__main__":
    main()
