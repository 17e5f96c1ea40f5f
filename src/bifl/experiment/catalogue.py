"""What a setting can be: `bifl list`, and the help for mistyped options.

Names are found in the text of this package's files, as importing all of them takes as long as torch does. A module is imported
when more is to be told of something in it.

>>> by_class = next(entry for entry in catalogue()["partition"] if entry.name == "by_class")
>>> by_class.parameters(), by_class.ranges()
({'classes_per_client': 3}, {'classes_per_client': '1 or more'})
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from bifl import registry
from bifl.errors import ConfigError
from bifl.experiment.declarations import CHOICES

_PACKAGE = Path(__file__).parents[1]
_REGISTERED = re.compile(r"^@(?:\w+\.)?(\w+)\n(?:@.+\n)*def (\w+)\(", re.MULTILINE)
_FAMILIES = ("algorithms", "privacy", "robust")  # folders in which a file is about one family, and says whose method it is
_ABSURD: Mapping[type, Any] = {int: -(10**12), float: -1e12, str: "?"}  # no parameter may be that
_LARGE = ("dataset", "model")  # factories of these are not tried out: they read files, or take memory


class Entry(NamedTuple):
    """Something of this package that can be chosen."""

    key: str  # of the setting
    name: str
    file: Path

    def _module(self) -> Any:
        return import_module(".".join(("bifl", *self.file.relative_to(_PACKAGE).with_suffix("").parts)))

    def _factory(self) -> Callable[..., Any]:
        factory: Callable[..., Any] = getattr(self._module(), self.name)
        return factory

    def parameters(self) -> dict[str, Any]:
        """With their defaults."""
        return dict(registry.defaults(self._factory(), f"{self.key} '{self.name}'"))

    def docstring(self) -> list[str]:
        """Its paragraphs; the first begins with what it is in one line."""
        return _paragraphs(inspect.getdoc(self._factory()) or "")

    def about(self) -> str:
        """The first line of its docstring."""
        return registry.first_line(self._factory())

    def family(self) -> list[str]:
        """What its file says of it and its kin, in paragraphs; nothing where a file holds all kinds of things."""
        alone = self.file.parent.name in _FAMILIES and self.name != "none"
        return _paragraphs(inspect.getdoc(self._module()) or "") if alone else []

    def ranges(self) -> dict[str, str]:
        """What parameters must be, in the words of the sentence that refuses an absurd value; without those that nobody refuses."""
        if self.key in _LARGE:
            return {}
        refusals = {name: self._refusal(name, _ABSURD.get(type(default))) for name, default in self.parameters().items()}
        found = {name: re.match(rf"{self.key}\.{name} must be (.+?),? not ", text) for name, text in refusals.items()}
        return {name: match[1] for name, match in found.items() if match}

    def _refusal(self, parameter: str, value: Any) -> str:
        factory = self._factory()
        needed = [each for each in inspect.signature(factory).parameters.values() if each.default is each.empty]
        try:
            factory(*[None] * len(needed), **{parameter: value})
        except ConfigError as error:
            return str(error)
        except (TypeError, AttributeError):  # of what is needed besides, which is not there
            return ""
        return ""


def catalogue() -> dict[str, list[Entry]]:
    """By the keys of settings: what each can be set to; first `none`, where there is that."""
    marks = {decorator: key for key, decorator in CHOICES.items()}
    entries: dict[str, list[Entry]] = {key: [] for key in CHOICES}
    for path in sorted(_PACKAGE.glob("*/*.py")):
        for decorator, name in _REGISTERED.findall(path.read_text(encoding="utf-8")):
            if decorator in marks:
                entries[marks[decorator]].append(Entry(marks[decorator], name, path))
    return {key: sorted(found, key=lambda entry: entry.name != "none") for key, found in entries.items()}


def _paragraphs(text: str) -> list[str]:
    """Prose, each paragraph in one line; examples are left out."""
    blocks = [block for block in text.split("\n\n") if not block.lstrip().startswith((">>>", "@")) and not block.endswith(":")]
    return [" ".join(block.split()) for block in blocks if block.strip()]
