"""Arguments between tags, such as `<parameter=key>value</parameter>`, made into JSON while they arrive."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.core.output_parsers.events import CallArguments, CallBegan, Event
from gateway.core.output_parsers.json_scan import skip_space
from gateway.core.output_parsers.markers import find_marker
from gateway.core.output_parsers.readers import OutputReader, Read
from gateway.core.output_parsers.syntax import Tags

# Some models say which values are texts.
_IS_TEXT = 'string="true"'


@dataclass(slots=True)
class ParametersReader:
    """The inside of one call. `types`: JSON types of the parameters, as the tool declares them."""

    name: str
    types: Mapping[str, str]
    tags: Tags
    done: Callable[[], OutputReader]
    _began: bool = False
    _count: int = 0

    def feed(self, text: str) -> Read:
        """See OutputReader."""
        opening, close, end = self.tags.key[0], self.tags.value_end.strip(), self.tags.end
        events: list[Event] = []
        if not self._began:
            self._began = True
            events.append(CallBegan(self.name))
        while True:
            bare = skip_space(text)
            if bare.startswith(end):
                events.append(CallArguments("}" if self._count else "{}"))
                return Read(events=events, rest=bare[len(end) :], next=self.done())
            if not bare or opening.startswith(bare) or end.startswith(bare):
                return Read(events=events, rest=text)
            if not bare.startswith(opening):
                events.append(CallArguments("}" if self._count else "{}"))
                return Read(events=events, rest=bare, next=self.done())
            found = find_marker(bare, (close,))
            if not found.marker:
                return Read(events=events, rest=text)
            events.append(self._argument(found.before[len(opening) :]))
            text = found.rest

    def finish(self, held: str) -> list[Event]:
        """See OutputReader."""
        bare = skip_space(held)
        events: list[Event] = [] if self._began else [CallBegan(self.name)]
        opening = self.tags.key[0]
        if bare.startswith(opening) and self.tags.split.search(bare, len(opening)):
            events.append(self._argument(bare[len(opening) :]))
        events.append(CallArguments("}" if self._count else "{}"))
        return events

    def _argument(self, text: str) -> CallArguments:
        found = self.tags.split.search(text)
        key, value = (text, "") if found is None else (text[: found.start()], text[found.end() :])
        value = value.removeprefix("\n").removesuffix("\n")
        key = key.strip()
        self._count += 1
        says_text = found is not None and _IS_TEXT in found[0]
        written = json.dumps(value) if says_text else self._json(key, value)
        return CallArguments(("{" if self._count == 1 else ", ") + json.dumps(key) + ": " + written)

    def _json(self, key: str, value: str) -> str:
        if self.types.get(key) == "string":
            return json.dumps(value)
        try:
            json.loads(value)
        except ValueError:
            return json.dumps(value)
        return value.strip()
