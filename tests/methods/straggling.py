"""Stragglers in plain PyTorch: what LGA, PLGA, FedAvg (Async) and FedAsync are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import e, exp

import torch
from torch import Tensor

from tests.methods.plain import (
    BODY,
    CLIENTS,
    HEAD,
    START,
    State,
    angle,
    batches,
    combine,
    minus,
    sgd,
    vector,
)

STAGES = ((*BODY,), (*HEAD,))
Late = Callable[[State, State, State, State, int], State]  # w0, wk, w1, wt, p -> what is averaged


def St(S: float) -> float:
    """Eq. 13."""
    return exp(S) / (e + exp(S))


@dataclass(frozen=True)
class Leap:
    """Eq. 10 or 11, stage by stage."""

    equation: int = 11
    raw: bool = False
    stages: tuple[tuple[str, ...], ...] = STAGES

    def similarity(self, w0: State, wk: State, w1: State) -> dict[str, float]:
        """S of every tensor's stage (Eq. 8)."""
        moved, there = minus(wk, w0), minus(w1, w0)
        return {
            n: angle(vector(there, stage), vector(moved, stage))
            for stage in self.stages
            for n in stage
        }

    def __call__(self, w0: State, wk: State, w1: State, wt: State, p: int) -> State:
        S = self.similarity(w0, wk, w1)
        what = {}
        for n in w0:
            d, weight = wk[n] - w0[n], S[n] if self.raw else St(S[n])
            first = wt[n] if self.equation == 11 else w0[n]
            what[n] = first + weight * d * d * (wt[n] - w1[n]) + d
        return what

    def personalized(self, what: State, w0: State, wk: State, w1: State, wt: State) -> State:
        """Eq. 12 as printed, before w0 cancels."""
        S = self.similarity(w0, wk, w1)
        return {
            n: w0[n] + (1 - St(S[n])) * (what[n] - w0[n]) + St(S[n]) * (wt[n] - w0[n]) for n in w0
        }


@dataclass(frozen=True)
class Straggling:
    """Clients follow their patterns (T train, U late upload, B both, dot away) on an endless
    sequence of batches; what is still out in the last round arrives then."""

    patterns: tuple[str, ...]
    late: Late
    lr: float = 0.2
    batch: int | None = 4
    steps: int = 2
    by_class: bool = False
    uniform: bool = False
    leap: Leap | None = None  # also make the personalized models of PLGA

    def run(self, rounds: int) -> tuple[list[State], list[list[State]]]:
        """Server model and personalized models after every round."""
        w = dict(START)
        at_start: list[State] = []
        out: dict[int, tuple[int, State, State]] = {}
        on_time: dict[int, tuple[State, State]] = {}
        wp = [dict(START) for _ in CLIENTS]
        seen = [0] * len(CLIENTS)
        server, personal = [], []
        for t in range(rounds):
            at_start.append(w)
            arrived: dict[int, State] = {}
            for i, pattern in enumerate(self.patterns):
                mark = pattern[t % len(pattern)]
                if mark in "TB":
                    if i in on_time:
                        wp[i] = self.contact(wp[i], *on_time.pop(i), w)
                    wk = sgd(w, CLIENTS[i], self.rows(i, seen[i]), lr=self.lr)
                    seen[i] += self.steps
                if mark == "T":
                    out[i] = (t, w, wk)
                elif mark == "B":
                    on_time[i] = (w, wk)
                    arrived[i] = wk
                elif i in out and (mark == "U" or t == rounds - 1):
                    s, w0, wk = out.pop(i)
                    w1 = at_start[s + 1]
                    arrived[i] = self.late(w0, wk, w1, w, t - s)
                    if self.leap:
                        wp[i] = self.leap.personalized(arrived[i], w0, wk, w1, w)
            if arrived:
                w = self.mean(arrived)
            server.append(w)
            personal.append(list(wp))
        return server, personal

    def contact(self, before: State, w0: State, wk: State, w: State) -> State:
        return self.leap.personalized(wk, w0, wk, w, w) if self.leap else before

    def rows(self, i: int, start: int) -> list[Tensor]:
        client = CLIENTS[i]
        order = client.y.argsort(stable=True) if self.by_class else torch.arange(len(client))
        once = [order[b] for b in batches(len(client), self.batch)]
        return [once[k % len(once)] for k in range(start, start + self.steps)]

    def mean(self, arrived: dict[int, State]) -> State:
        sizes = [1 if self.uniform else len(CLIENTS[i]) for i in arrived]
        return combine([n / sum(sizes) for n in sizes], list(arrived.values()))
