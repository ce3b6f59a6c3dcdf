"""Settings as text: the part of YAML 1.2 that settings need, read strictly.

PyYAML reads YAML 1.1, in which `010` is 8, `1:0` is 60 and `no` is false, keeps the last of two
equal keys, and follows aliases until the memory is full. Here plain words and numbers are those of
the YAML 1.2 core schema, and everything that could be misread is an error.
"""

import math
import re
from typing import Any

import yaml

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 32

WORD_TYPES = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise _error("an alias (*name) is not read; write the value out", self.peek_event())
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _error("it is nested too deep", self.peek_event())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def load(text: str) -> Any:
    """The value that the text stands for; a ValueError in one line if it is not clear."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_CHARACTERS:,} characters")
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader that knows less
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        what = " ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"{what}{where}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def dump(value: Any) -> str:
    """Text that `load` reads as the same value."""
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True
    )


def _int(loader: _Loader, node: Any) -> int:
    text = _text(loader, node, "int")
    try:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    except ValueError:  # Python reads no number of more than some thousand digits
        raise _error("the number has too many digits", node) from None


def _float(loader: _Loader, node: Any) -> float:
    text = _text(loader, node, "float")
    value = math.nan if "n" in text.lower() else float(text)
    if not math.isfinite(value):
        raise _error(f"{text} is not a finite number", node)
    return value


def _bool(loader: _Loader, node: Any) -> bool:
    return _text(loader, node, "bool").lower() == "true"


def _null(loader: _Loader, node: Any) -> None:
    _text(loader, node, "null")


def _word(loader: _Loader, node: Any) -> str:
    text = str(loader.construct_scalar(node))
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _error("it holds half of a character pair, which no file can hold", node)
    return text


def _list(loader: _Loader, node: Any) -> list[Any]:
    return loader.construct_sequence(node, deep=True)


def _mapping(loader: _Loader, node: Any) -> dict[Any, Any]:
    if not isinstance(node, yaml.MappingNode):  # tagged by hand: `!!map x`
        raise _error("it has no keys", node)
    made: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float):
            raise _error("a key must be a word", key_node)
        if key in made:
            raise _error(f"the key '{key}' is there twice; keep one", key_node)
        made[key] = loader.construct_object(value_node, deep=True)
    return made


def _text(loader: _Loader, node: Any, kind: str) -> str:
    """The text of a scalar; it may be tagged by hand as what it is not: `!!int x`."""
    text = str(loader.construct_scalar(node))
    if not re.fullmatch(WORD_TYPES[kind][0], text):
        raise _error(f"'{text}' is not of type {kind}", node)
    return text


def _unknown(loader: _Loader, node: Any) -> None:
    raise _error(f"the tag {node.tag} is not read", node)


def _error(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {}
_Dumper.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first) in WORD_TYPES.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), _first
        )
_Loader.add_constructor("tag:yaml.org,2002:null", _null)
_Loader.add_constructor("tag:yaml.org,2002:bool", _bool)
_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:str", _word)
_Loader.add_constructor("tag:yaml.org,2002:seq", _list)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor(None, _unknown)
