"""Makes the dataclasses of `refrain.assistant` from the native half's JSON. The native half calls `read`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from refrain import assistant
from refrain._events import stats_of

Values: TypeAlias = dict[str, Any]


def _source(values: Values | None) -> assistant.Source | None:
    if values is None:
        return None
    return assistant.Source(Path(values["path"]), _place(values["place"]), values["is_verbatim"], values["score"], values["locator"])


def _place(pair: list[int]) -> assistant.Place:
    start, end = pair
    return start, end


def _changed(values: Values, **changed: Any) -> Values:
    """The values with others in place of some."""
    return values | changed


def _passage(values: Values) -> assistant.Passage:
    return assistant.Passage(**_changed(values, source=_source(values["source"])))


def _left_out(values: Values) -> assistant.LeftOut:
    return assistant.LeftOut(**_changed(values, source=_source(values["source"])))


def _turn(values: Values) -> assistant.Turn:
    return assistant.Turn(**_changed(values, notes=_paths(values["notes"])))


def _paths(names: list[str]) -> tuple[Path, ...]:
    return tuple(map(Path, names))


def _change(values: Values) -> assistant.Change:
    new = values["new"]
    return assistant.Change(values["kind"], _place(values["old"]), None if new is None else _place(new))


def _window(values: Values) -> assistant.Window:
    return assistant.Window(**_changed(values, old=_place(values["old"]), new=_place(values["new"])))


def _citation(values: Values) -> assistant.Citation:
    return assistant.Citation(**_changed(values, place=_place(values["place"])))


def _sentence(values: Values) -> assistant.Sentence:
    citations = tuple(map(_citation, values["citations"]))
    return assistant.Sentence(**_changed(values, place=_place(values["place"]), citations=citations))


def _copied(values: Values) -> assistant.CopiedSpan:
    return assistant.CopiedSpan(**_changed(values, output=_place(values["output"]), place=_place(values["place"])))


def _provenance(values: Values) -> assistant.Provenance:
    return assistant.Provenance(tuple(map(_copied, values["copied"])), tuple(map(_sentence, values["sentences"])))


def _report(values: Values) -> assistant.Report:
    stats, left_out = tuple(map(stats_of, values["stats"])), tuple(map(_left_out, values["left_out"]))
    return assistant.Report(**_changed(values, stats=stats, left_out=left_out))


def _bubble_source(values: Values) -> assistant.BubbleSource:
    path = values["path"]
    return assistant.BubbleSource(**_changed(values, path=None if path is None else Path(path), supports=tuple(values["supports"])))


def _each(read: Callable[[Any], Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
    return lambda values: tuple(map(read, values))


def _searched(values: Values | None) -> assistant.Searched | None:
    if values is None:
        return None
    words = tuple((text, weight) for text, weight in values["words"])
    return assistant.Searched(**_changed(values, words=words, nearest=tuple(map(_passage, values["nearest"]))))


# What becomes of the fields of results; the others are as they are.
_FIELDS: dict[str, Callable[[Any], Any]] = {
    "around": tuple,
    "changes": _each(_change),
    "command": lambda values: assistant.Command(**values),
    "copied": _each(_copied),
    "dropped": _each(_turn),
    "left_out": _each(_left_out),
    "matched": _each(_place),
    "new_part": _place,
    "old_part": _place,
    "parts": tuple,
    "passages": _each(_passage),
    "path": Path,
    "place": _place,
    "provenance": _provenance,
    "report": _report,
    "sentences": _each(_sentence),
    "searched": _searched,
    "skipped": _each(lambda pair: (Path(pair[0]), pair[1])),
    "skipped_by_ending": _each(tuple),
    "sources": _each(_bubble_source),
    "tags": tuple,
    "texts": _each(_passage),
    "unknown": _paths,
    "unsupported": tuple,
}

# Classes that are parts of others too.
_CLASSES: dict[str, Callable[[Values], Any]] = {"Change": _change, "Searched": _searched, "Turn": _turn, "Window": _window}


def read(name: str, text: str) -> Any:
    """An object of `refrain.assistant`'s class `name` from the text of a JSON object."""
    values: Values = json.loads(text)
    if name in _CLASSES:
        return _CLASSES[name](values)
    fields = {key: _FIELDS[key](value) if key in _FIELDS else value for key, value in values.items()}
    return getattr(assistant, name)(**fields)
