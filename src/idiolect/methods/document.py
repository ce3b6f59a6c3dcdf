"""The table of methods: `python -m idiolect.methods.document > docs/methods.md`."""

from idiolect.methods import REGISTRY

INTRODUCTION = """\
# Methods

Traffic is in model sizes per client and round, up and down together (base: the model without its
personal part). Late: whether work that arrives after its round is used. Hyperparameters and their
defaults: `idiolect list methods --json`. Any method followed by fine-tuning: `NAME_ft`.

This file is written by `python -m idiolect.methods.document > docs/methods.md`.
"""


def table() -> str:
    """One row per registered method, in the registry's order."""
    head = ("method", "paper", "year", "personal", "traffic", "late")
    rows = [
        (
            f"`{m.name}`",
            m.paper,
            str(m.year or ""),
            m.personal_part,
            m.traffic,
            _late(m.asynchronous),
        )
        for m in REGISTRY.values()
    ]
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _late(asynchronous: bool) -> str:
    return "used" if asynchronous else "no"


def document() -> str:
    return f"{INTRODUCTION}\n{table()}"


if __name__ == "__main__":
    print(document(), end="")
