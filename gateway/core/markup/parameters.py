"""Arguments as tags, `<parameter=key>value</parameter>`, made into JSON while they arrive."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.core.markup.events import CallArguments, CallBegan, Event
from gateway.core.markup.json_scan import skip_space
from gateway.core.markup.markers import find_marker
from gateway.core.markup.readers import Read, Reader

_OPEN, _CLOSE, _END = "<parameter=", "</parameter>", "</function>"


@dataclass(slots=True)
class Parameters:
    """The inside of `<function=name>…</function>`. `types`: JSON types of the parameters, as the tool declares them."""

    name: str
    types: Mapping[str, str]
    done: Callable[[], Reader]
    _began: bool = False
    _count: int = 0

    def feed(self, text: str) -> Read:
        """See Reader."""
        events: list[Event] = []
        if not self._began:
            self._began = True
            events.append(CallBegan(self.name))
        while True:
            bare = skip_space(text)
            if bare.startswith(_END):
                events.append(CallArguments("}" if self._count else "{}"))
                return Read(events=events, rest=bare[len(_END) :], next=self.done())
            if not bare or _OPEN.startswith(bare) or _END.startswith(bare):
                return Read(events=events, rest=text)
            if not bare.startswith(_OPEN):
                events.append(CallArguments("}" if self._count else "{}"))
                return Read(events=events, rest=bare, next=self.done())
            found = find_marker(bare, (_CLOSE,))
            if not found.marker:
                return Read(events=events, rest=text)
            events.append(self._argument(found.before[len(_OPEN) :]))
            text = found.rest

    def finish(self, held: str) -> list[Event]:
        """See Reader."""
        bare = skip_space(held)
        events: list[Event] = [] if self._began else [CallBegan(self.name)]
        if bare.startswith(_OPEN) and ">" in bare:
            events.append(self._argument(bare[len(_OPEN) :]))
        events.append(CallArguments("}" if self._count else "{}"))
        return events

    def _argument(self, text: str) -> CallArguments:
        key, _, value = text.partition(">")
        value = value.removeprefix("\n").removesuffix("\n")
        key = key.strip()
        self._count += 1
        return CallArguments(("{" if self._count == 1 else ", ") + json.dumps(key) + ": " + self._json(key, value))

    def _json(self, key: str, value: str) -> str:
        if self.types.get(key) == "string":
            return json.dumps(value)
        try:
            json.loads(value)
        except ValueError:
            return json.dumps(value)
        return value.strip()
