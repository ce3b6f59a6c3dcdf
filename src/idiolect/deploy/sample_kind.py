"""What a site says of its samples. All sites of a federation must say the same; the samples
themselves stay where they are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from idiolect.core import own_metric
from idiolect.core.form import PLAIN, Form
from idiolect.core.task import (
    ACCURACY,
    METRICS,
    LearningTask,
    Metric,
    as_it_is,
    is_column,
    is_ours,
    metric_named,
)
from idiolect.data import Federation
from idiolect.errors import UserError

MAX_CODES = 1 << 20  # values of one whole number
MAX_INPUTS = 64
MAX_OUTPUTS = 1 << 26  # numbers that a network gives for one sample


@dataclass(frozen=True)
class SampleKind:
    """Shape, task and meaning of a sample, and what clients are judged by."""

    shape: tuple[int, ...]
    classes: int  # without classes: targets of a sample
    labels: str = ""  # digest of the class names
    task: str = "classification"
    metric: str = "accuracy"
    better: str = "higher"
    form: Form = PLAIN

    @classmethod
    def of(cls, data: Federation, labels: str = "", codes: Sequence[int] = ()) -> "SampleKind":
        """Of a site's own data. `codes` is how many values whole numbers have in the whole
        federation: what one site has of them says too little."""
        metric = data.task.metric
        counted = not data.x.is_floating_point() or data.form.fields
        form = replace(data.form, codes=tuple(codes) or (() if counted else data.form.codes))
        if data.x.dtype == torch.int64 and (form.padded or form.steps) and not form.codes:
            raise UserError(
                "sequences of whole numbers need --codes N, how many different ones the federation "
                "has, the same at every site"
            )
        better = "lower" if metric.lower else "higher"
        what = (data.task.name, metric.name, better)
        return cls(data.shape, data.classes, labels, *what, form)

    @classmethod
    def read(cls, hello: Mapping[str, Any]) -> "SampleKind":
        """From a hello in which nothing is wrong."""
        plain = {key: hello[key] for key in ("classes", "labels", "task", "metric", "better")}
        return cls(tuple(hello["shape"]), **plain, form=Form.read(hello["form"]))

    def told(self) -> dict[str, Any]:
        """For a hello."""
        return {**vars(self), "shape": list(self.shape), "form": self.form.as_plain()}

    def difference(self, other: "SampleKind") -> str | None:
        """What is different about the samples of another site, in words."""
        if (other.shape, other.classes) != (self.shape, self.classes):
            return (
                f"has samples of shape {list(other.shape)} in {other.classes} classes, the others "
                f"{list(self.shape)} in {self.classes}"
            )
        if other.labels != self.labels:
            return "has another list of class names than the others"
        for what in ("task", "metric"):
            ours, theirs = getattr(self, what), getattr(other, what)
            if ours != theirs:
                return f"has {what} {theirs}, the others {ours}; give --{what} {ours}"
        if other.form.codes != self.form.codes:
            told = ",".join(map(str, self.form.codes)) or "none"
            return f"has other --codes than the others, whose are {told}"
        return None if other == self else "has inputs of another form than the others"

    @property
    def judged_by(self) -> Metric:
        """The metric as the server knows it. Sites send correct predictions, of any other metric
        its value: what it is made of may tell how many samples of a class they have. Of one that is
        a site's own code, name and direction are enough."""
        if self.metric == ACCURACY.name:
            return ACCURACY
        if not is_ours(self.metric):
            own_metric.remember({"name": self.metric, "better": self.better})
        return replace(metric_named(self.metric), value=as_it_is)

    def targets(self, samples: int) -> torch.Tensor:
        """Made-up ones."""
        task = LearningTask(self.task)
        if task.has_classes:
            return torch.arange(samples) % self.classes
        if task.per_step:
            return torch.zeros(samples, self.form.steps, dtype=torch.int64)
        return torch.zeros(samples, self.classes)


def wrong(hello: Mapping[str, Any]) -> str | None:
    """What is wrong with the task, the metric or the form of a hello."""
    task, metric, form = hello.get("task"), hello.get("metric"), hello.get("form")
    if not isinstance(task, str) or task not in METRICS:
        return f"task {task!r:.40} is not known"
    if not isinstance(metric, str) or len(metric) > 64 or not metric.isidentifier():
        return f"metric {metric!r:.40} is not a name"
    if is_column(metric):
        return f"metric {metric} has the name of another column"
    if is_ours(metric) and metric not in METRICS[task]:
        return f"metric {metric} is not for {task}"
    if hello.get("better") not in ("higher", "lower"):
        return "better is neither higher nor lower"
    if not isinstance(form, dict) or set(form) != set(PLAIN.as_plain()):
        return "the form of its samples is incomplete"
    if type(form["steps"]) is int and form["steps"] * hello["classes"] > MAX_OUTPUTS:
        return f"{form['steps']} steps of {hello['classes']} classes are too many"
    return _wrong_form(form, hello["shape"], task)


def _wrong_form(form: Mapping[str, Any], shape: Sequence[int], task: str) -> str | None:
    codes, steps, fields = form["codes"], form["steps"], form["fields"]
    if type(form["padded"]) is not bool or type(form["by_name"]) is not bool:
        return "padded and by_name are yes or no"
    if not isinstance(fields, list) or len(fields) > MAX_INPUTS:
        return "inputs are not a short list"
    if not _counts(codes, MAX_CODES) or len(codes) not in (0, 1, shape[0], len(fields)):
        return f"codes {codes!r:.80} are not counts"
    if not _counts([steps], 1 << 20) or (steps > 0) != LearningTask(task).per_step:
        return f"steps {steps!r:.40} do not go with {task}"
    size = 0
    for one in fields:
        if not isinstance(one, dict) or set(one) != {"name", "shape", "whole"}:
            return "an input is incomplete"
        named = isinstance(one["name"], str) and len(one["name"]) <= 80
        if not named or not one["name"].isprintable() or type(one["whole"]) is not bool:
            return "an input has no name"
        if not _counts(one["shape"], 1 << 26) or len(one["shape"]) > 8:
            return "an input has no shape"
        size += math.prod(one["shape"])
    if fields and list(shape) != [size]:
        return f"its inputs have {size} numbers together, a sample has shape {shape}"
    return None


def _counts(values: Any, most: int) -> bool:
    if not isinstance(values, list):
        return False
    return all(type(value) is int and 0 <= value <= most for value in values)
