"""Advice in plain words, a line for each thing a reader wants to know."""

from collections.abc import Mapping, Sequence

from idiolect.core.text import one_line
from idiolect.data.heterogeneity import Heterogeneity
from idiolect.report.advice import Advice
from idiolect.report.run_groups import Group
from idiolect.report.significance import SURE, TEST

NAMED = 5  # clients told by name; all are in the JSON
LITTLE, MUCH = 0.05, 0.25  # skew beyond chance, in words


def difference_told(found: Heterogeneity) -> str:
    beyond = found.beyond_chance
    word = "hardly differ" if beyond < LITTLE else "differ" if beyond < MUCH else "differ strongly"
    sizes = f"{found.smallest}"
    if found.largest > found.smallest:
        sizes += f" to {found.largest} (median {found.median:.0f})"
    return (
        f"Clients {word} in their labels: {found.what} is {found.skew:.2f}, by chance it would be "
        f"{found.by_chance:.2f}. They have {sizes} training and validation samples each."
    )


def updates_told(similarity: Mapping[str, float]) -> str:
    """`similarity`: mean cosine of two clients' updates, by layer."""
    if not similarity:
        return "How alike updates are is not known: no two clients, or no layer with a matrix."
    told = ", ".join(f"{one_line(layer)} {value:.2f}" for layer, value in similarity.items())
    return f"Clients' updates (1: the same direction, 0: unrelated), layer by layer: {told}."


def lines(advice: Advice) -> list[str]:
    """What the tournament says."""
    return [
        _alone_or_together(advice),
        _choice(advice),
        _how_sure(advice),
        _who(advice),
        _cost(advice),
    ]


def score_of(group: Group) -> str:
    """Its mean over clients, with the metric's name where that is not accuracy."""
    if group.accuracy is None:
        return "no score"
    told = group.metric.told(group.accuracy)
    return told if group.metric.name == "accuracy" else f"{group.metric.name} {told}"


def _alone_or_together(advice: Advice) -> str:
    alone, shared = advice.group("local"), advice.group("fedavg")
    if alone is None or shared is None:
        return ""
    return (
        f"Training alone gives {score_of(alone)}, one model for all {score_of(shared)} (mean over "
        "clients, validation samples)."
    )


def _choice(advice: Advice) -> str:
    chosen, best = advice.chosen, advice.best
    told = f"Take {chosen.label}: {score_of(chosen)} on validation samples"
    if chosen is best:
        return f"{told}, the best of {len(advice.groups)} methods."
    behind = best.difference(advice.against[chosen.label].behind)
    return f"{told}. {best.label} has {score_of(best)}, {behind} better for each client on average."


def _how_sure(advice: Advice) -> str:
    tested = [one for one in advice.against.values() if one.p is not None]
    if not tested:
        pairs = max((one.pairs for one in advice.against.values()), default=0)
        return (
            f"Not sure: {pairs} pairs of a client and a seed are too few for a test; give more "
            "--seeds."
        )
    told = []
    if advice.alike:
        names = _listed([advice.best.label, *(one.label for one in advice.alike)], 20, " and ")
        told.append(f"{names} cannot be told apart; {_why_cheaper(advice)}.")
    if advice.perhaps:
        each = [
            f"{one.label} ({advice.best.difference(advice.against[one.label].behind)} behind)"
            for one in advice.perhaps
        ]
        told.append(
            f"Not sure: that {_listed(each, 20)} did worse may be chance; more --seeds would tell."
        )
    worse = [one.label for one in advice.against.values() if one.is_worse]
    if len(worse) == len(advice.against):
        told.append("Sure: every other method is worse beyond chance.")
    elif worse:
        told.append(f"Worse beyond chance: {', '.join(worse)}.")
    return (
        f"{' '.join(told)} ({TEST}, {tested[0].pairs} pairs of a client and a seed, level {SURE}.)"
    )


def _why_cheaper(advice: Advice) -> str:
    chosen = advice.chosen
    others = [one for one in (advice.best, *advice.alike) if one is not chosen]
    mine, least = advice.cost(chosen), min(advice.cost(one).order for one in others)
    if mine.order == least:
        return f"{chosen.label} costs no more than the others and is taken"
    what = "sends least" if mine.order[0] < least[0] else "computes least for what it sends"
    return f"{chosen.label} {what} and is taken"


def _who(advice: Advice) -> str:
    if advice.chosen.method == "local":
        return "Every client keeps what it has alone: none gains, none is harmed."
    gains = advice.gains
    if not gains:
        return "Who gains is not known: clients have no scores to compare."

    def told(names: Sequence[str]) -> str:
        scale, unit = advice.chosen.scale, advice.chosen.difference
        each = [f"{one_line(name)} ({unit(abs(scale * gains[name]))})" for name in names]
        return f": {_listed(each, NAMED)}" if each else ""

    up, down = advice.gaining, advice.harmed
    return (
        f"Against training alone, {len(up)} of {len(gains)} clients gain{told(up)}. "
        f"{len(down) or 'None'} {'are' if len(down) > 1 else 'is'} harmed{told(down)}."
    )


def _cost(advice: Advice) -> str:
    cost = advice.cost(advice.chosen)
    clients = advice.chosen.runs[0].summary["clients"]
    return (
        f"It costs {cost.megabytes:.3g} MB (all {clients} clients, both ways) and "
        f"{cost.seconds:.2g} seconds per round on this machine."
    )


def _listed(names: Sequence[str], most: int, last: str = ", ") -> str:
    more = len(names) - most
    if more > 0:
        return f"{', '.join(names[:most])} and {more} more"
    return last.join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
