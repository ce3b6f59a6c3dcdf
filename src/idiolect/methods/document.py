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
    lines = [head, ("---",) * len(head)]
    for m in REGISTRY.values():
        late = "used" if m.asynchronous else "no"
        lines.append((f"`{m.name}`", m.paper, str(m.year or ""), m.personal_part, m.traffic, late))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def document() -> str:
    return f"{INTRODUCTION}\n{table()}"


if __name__ == "__main__":
    print(document(), end="")
