"""The catalogue of bad input, as a table: what is sent in each dialect, and exactly what comes back.

A row is read as: number, what it is, the body for each dialect (a function of the dialect, or bytes for all), the
status, and the text. `param` is the field that OpenAI's dialect names.
"""
# ruff: noqa: E501  # a table is read by its lines

import base64
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

OPENAI, ANTHROPIC, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"
RESPONSES = "/v1/responses"
DIALECTS = (OPENAI, ANTHROPIC, OLLAMA)
Send = Callable[[str], Any]
HELLO = [{"role": "user", "content": "Hello"}]
DEPTH, ITEMS = 100_000, 50_000
GOOD = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One input of the catalogue in one dialect. No text: the status alone, with a whole answer."""

    number: str
    what: str
    path: str
    send: Any  # bytes, or what becomes JSON
    status: int
    text: str = ""
    param: str | None = None
    code: str = "invalid_value"

    def __str__(self) -> str:
        """As tests name it."""
        return f"{self.number} {self.what} {self.path}"


def chat(path: str, **more: Any) -> dict[str, Any]:
    """A good request of a dialect, and more."""
    body: dict[str, Any] = {"model": "demo", "messages": HELLO}
    if path == ANTHROPIC:
        body["max_tokens"] = 9
    if path == OLLAMA:
        body["stream"] = False
    return {**body, **more}


def option(**values: Any) -> Send:
    return lambda path: chat(path, options=values)


def with_field(name: str, value: Any) -> Send:
    return lambda path: chat(path, **{name: value})


def said(content: Any, role: str = "user", times: int = 1) -> Send:
    return lambda path: chat(path, messages=[{"role": role, "content": content}] * times)


def with_image(data: Any, *, plain: bool = False) -> Send:
    """An image as each dialect carries it. `plain`: as it is, without the beginning of a data URI."""
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else data

    def send(path: str) -> dict[str, Any]:
        if path == OPENAI:
            url = text if plain else f"data:image/png;base64,{text}"
            content: Any = [{"type": "image_url", "image_url": {"url": url}}]
        elif path == ANTHROPIC:
            source = {"type": "base64", "media_type": "image/png", "data": text}
            content = [{"type": "image", "source": source}]
        else:
            return chat(path, model="seer", messages=[{"role": "user", "content": "x", "images": [text]}])
        return chat(path, model="seer", messages=[{"role": "user", "content": content}])

    return send


def with_source(source: dict[str, Any]) -> Send:
    """An image of Anthropic's dialect."""
    return lambda path: chat(
        path, model="seer", messages=[{"role": "user", "content": [{"type": "image", "source": source}]}]
    )


def with_tools(count: int = 1, name: str = "look", parameters: Any = None) -> Send:
    schema = {"type": "object", "properties": {}} if parameters is None else parameters
    names = [name] if count == 1 else [f"look{number}" for number in range(count)]

    def send(path: str) -> dict[str, Any]:
        if path == ANTHROPIC:
            return chat(path, tools=[{"name": one, "input_schema": schema} for one in names])
        functions = [{"type": "function", "function": {"name": one, "parameters": schema}} for one in names]
        return chat(path, tools=functions)

    return send


def with_schema(schema: Any) -> Send:
    def send(path: str) -> dict[str, Any]:
        if path == OPENAI:
            wrapped = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            return chat(path, response_format=wrapped)
        return chat(path, format=schema)

    return send


def with_grammar(text: str) -> Send:
    return lambda path: chat(path, grammar=text)


def with_result(path: str) -> dict[str, Any]:
    """The result of a call that nobody made."""
    if path == ANTHROPIC:
        block = {"type": "tool_result", "tool_use_id": "call_1", "content": "x"}
        return chat(path, messages=[{"role": "user", "content": [block]}])
    return chat(path, messages=[*HELLO, {"role": "tool", "content": "x", "tool_call_id": "call_1"}])


def turns(*contents: list[Any]) -> Send:
    """A question of Anthropic's dialect, and turns behind it: an answer first."""
    roles = ("assistant", "user")
    said = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return lambda path: chat(path, messages=[*HELLO, *said])


TEXT = {"type": "text", "text": "x"}
EMPTY = {"type": "text", "text": ""}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FORCED = {"type": "tool", "name": "web_search"}
FORM = {"type": "json_schema", "schema": {"type": "object"}}


def of_items(*items: Any, **more: Any) -> Send:
    """A request of the Responses API; an item of no kind stands for a question."""
    question = {"type": "message", "role": "user", "content": "Hello"}
    return lambda _: {"model": "demo", "input": [item or question for item in items] or [question], **more}


CALL_ITEM = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
RESULT_ITEM = {"type": "function_call_output", "call_id": "call_1", "output": "x"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def nested_lists(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + b"\0\0\0\0"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 8


def animated(frames: int) -> bytes:
    """A GIF of frames of one pixel."""
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02D\x01\0"
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0" * 6 + frame * frames + b"\x3b"


def animated_png(frames: int) -> bytes:
    """Its head alone: the number of frames stands before the pixels."""
    control = struct.pack(">II", frames, 0)
    return png(1, 1) + struct.pack(">I", len(control)) + b"acTL" + control + b"\0" * 4


def animated_webp(frames: int) -> bytes:
    """Frames without contents, behind a header that says that there are some."""
    chunk = b"VP8X" + struct.pack("<I", 10) + b"\x02" + b"\0" * 9
    return b"RIFF\0\0\0\0WEBP" + chunk + (b"ANMF" + struct.pack("<I", 0)) * frames


def row(
    number: str,
    what: str,
    send: Send | bytes,
    status: int,
    text: str | Mapping[str, str] = "",
    *,
    param: str | None = None,
    code: str = "invalid_value",
    only: tuple[str, ...] = DIALECTS,
) -> list[Row]:
    """A row for each dialect. `text`: the same for all, or by dialect."""
    rows = []
    for path in only:
        mine = text if isinstance(text, str) else text[path]
        rows.append(
            Row(
                number=number,
                what=what,
                path=path,
                send=send if isinstance(send, bytes) else send(path),
                status=status,
                text=mine,
                param=param,
                code=code,
            )
        )
    return rows


JSON = "invalid JSON in request body: "
NO_BASE64, NO_IMAGE = "an image is not valid base64", "an image is none of PNG, JPEG, BMP, GIF, WebP"
NO_URLS = "image URLs are not currently supported, please use base64 encoded data instead"
ONE_FRAME = "an image has more than one frame"
TOO_MANY_PIXELS = "an image has more than 33554432 pixels"
NOT_ANTHROPIC = (OPENAI, OLLAMA)
GBNF = "grammar cannot be used: "


def not_found(name: str) -> dict[str, Any]:
    return {"text": f"model '{name}' not found", "param": "model", "code": "model_not_found"}


def named(name: str) -> Send:
    return lambda path: chat(path, model=name)


def in_schema(text: str) -> dict[str, str]:
    return {OPENAI: text.format("response_format"), OLLAMA: text.format("format")}


# fmt: off
TABLE: list[Row] = [row for rows in (
    row("IN1", "brackets", b"[" * DEPTH, 400, JSON + "depth limit exceeded: line 1 column 1026 (char 1025)"),
    row("IN1", "objects", b'{"a":' * ITEMS, 400, JSON + "depth limit exceeded: line 1 column 5122 (char 5121)"),
    row("IN2", "5,000 digits", b'{"model":"demo","seed":' + b"1" * 5000 + b"}", 400,
        JSON + "number is infinity when parsed as double: line 1 column 24 (char 23)"),
    row("IN2", "20 digits", b'{"model":"demo","seed":' + b"1" * 20 + b"}", 400, JSON + "integer with more than 19 digits"),
    row("IN3", "NaN", b'{"temperature":NaN}', 400,
        JSON + "unexpected character, expected a JSON value: line 1 column 16 (char 15)"),
    row("IN3", "Infinity", b'{"temperature":Infinity}', 400,
        JSON + "unexpected character, expected a JSON value: line 1 column 16 (char 15)"),
    row("IN3", "1e400", b'{"temperature":1e400}', 400,
        JSON + "number is infinity when parsed as double: line 1 column 16 (char 15)"),
    row("IN4", "lone surrogate", b'{"model":"\\ud800"}', 400,
        JSON + "no low surrogate in string: line 1 column 11 (char 10)"),
    row("IN5", "Latin-1", b'{"model":"\xff"}', 400,
        JSON + "str is not valid UTF-8: surrogates not allowed: line 1 column 1 (char 0)"),
    row("IN5", "UTF-16", '{"model":"demo"}'.encode("utf-16"), 400,
        JSON + "str is not valid UTF-8: surrogates not allowed: line 1 column 1 (char 0)"),
    row("IN6", "model twice", b'{"model":"demo","model":"demo"}', 400, JSON + "duplicate key"),
    row("IN7", "NUL in content", said("a\0b"), GOOD),
    row("IN7", "bidi marks in content", said("a\u202eb\u2066c"), GOOD),
    row("IN7", "1 MiB of one grapheme", said("e" + "\u0301" * 500_000), GOOD),
    row("IN7", "NUL in a name", named("de\0mo"), 400, "model must not have control characters", param="model"),
    row("IN7", "bidi mark in a name", named("de\u202emo"), 400, "model must not have control characters", param="model"),
    row("IN7", "NFD name", named("de\u0301mo"), 404, **not_found("de\u0301mo")),
    row("IN8", "true for an integer", option(seed=True), 400, 'option "seed" must be of type integer', param="seed"),
    row("IN8", "text for an integer", option(seed="5"), 400, 'option "seed" must be of type integer', param="seed"),
    row("IN8", "5.0 for an integer", option(seed=5.0), GOOD),
    row("IN8", "messages is text", lambda path: chat(path, messages="x"), 400, "messages must be of type array",
        param="messages"),
    row("IN8", "messages is null", lambda path: chat(path, messages=None), 400, "messages is required",
        param="messages", only=(OPENAI, ANTHROPIC)),
    row("IN8", "no model", lambda _: {"messages": HELLO, "max_tokens": 9}, 400, "model is required", param="model"),
    row("IN8", "a field of nobody", lambda path: chat(path, unheard_of=[1]), GOOD),
    row("IN8", "nothing", b"", 400, "missing request body"),
    row("IN8", "an array", b"[]", 400, "the request body must be a JSON object", only=NOT_ANTHROPIC),
    row("IN9", "n", lambda path: chat(path, n=10**9), 400, "n must be between 1 and 8", param="n", only=(OPENAI,)),
    row("IN9", "num_predict 2^63", option(num_predict=2**63), 400, 'option "num_predict" must be at least -2',
        param="num_predict", only=NOT_ANTHROPIC),
    row("IN9", "num_predict -3", option(num_predict=-3), 400, 'option "num_predict" must be at least -2',
        param="num_predict", only=NOT_ANTHROPIC),
    row("IN9", "num_predict 0 is no limit", option(num_predict=0), GOOD, only=NOT_ANTHROPIC),
    row("IN9", "num_predict -2 is no limit", option(num_predict=-2), GOOD, only=NOT_ANTHROPIC),
    row("IN9", "num_ctx 2^31 is clamped", option(num_ctx=2**31), GOOD),
    row("IN9", "num_batch 0", option(num_batch=0), 400, 'option "num_batch" must be at least 1', param="num_batch"),
    row("IN9", "seed 2^64", option(seed=2**64), 400, JSON + "integer with more than 19 digits"),
    row("IN9", "seed 2^63", option(seed=2**63), 400, 'option "seed" must be a 64-bit integer', param="seed"),
    row("IN9", "temperature", option(temperature=1e30), 400, 'option "temperature" must be between 0 and 10',
        param="temperature"),
    row("IN10", "knobs of engines", option(n_discard=-1, slot_id=0, n_keep=-5, rpc="x"), GOOD),
    row("IN11", "no messages", lambda path: chat(path, messages=[]), 400,
        {OPENAI: "[] is too short - 'messages'",
         ANTHROPIC: "messages: List should have at least 1 item after validation, not 0"},
        param="messages", only=(OPENAI, ANTHROPIC)),
    row("IN11", "no messages: load", lambda path: chat(path, messages=[]), GOOD, only=(OLLAMA,)),
    row("IN11", "system alone", said("x", "system"), GOOD),
    row("IN11", "unknown role", said("x", "wizard"), 400,
        {OPENAI: 'invalid message role: "wizard"', OLLAMA: 'invalid message role: "wizard"',
         ANTHROPIC: 'messages.0.role: "wizard" must be user, assistant or system'}, param="messages"),
    row("IN11", "100,000 tiny ones", said("x", times=100_000), 400, "request body has more than 200000 values"),
    row("IN11", "2,049", said("x", times=2049), 400,
        {OLLAMA: "a request can have 2048 messages"}
        | dict.fromkeys((OPENAI, ANTHROPIC), "messages: List should have at most 2048 items after validation, not 2049"),
        param="messages"),
    row("IN11", "2,048", said("x", times=2048), GOOD),
    row("IN11", "result without call", with_result, 400,
        dict.fromkeys(NOT_ANTHROPIC, "a message with the result of a tool must follow a call of it")
        | {ANTHROPIC: "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: call_1. Each "
           "`tool_result` block must have a corresponding `tool_use` block in the previous message."},
        param="messages"),
    *(row("IN11", what, turns(*messages), status, text, param="messages", only=(ANTHROPIC,)) for what, messages, status, text in (
        ("call without result", ([CALL], [TEXT]), GOOD, ""),
        ("two calls of one id", ([CALL], [RESULT], [CALL]), 400, "messages.3.content.0: `tool_use` ids must be unique"),
        ("call without a name", ([{"type": "tool_use", "id": "toolu_1", "input": {}}],), 400,
         "messages.1.content.0: a block of type tool_use must have id, name and an object as input"),
        ("result of nothing", ([CALL], [RESULT | {"content": None}]), GOOD, ""),
        ("result with a video", ([CALL], [RESULT | {"content": [{"type": "video"}]}]), 400,
         "messages.2.content.0.content.0: content blocks of type video are not supported in a tool turn"),
        ("empty texts", ([EMPTY], [EMPTY]), GOOD, ""),
        ("an empty answer", ([],), GOOD, ""),
        ("an answer that ends in a blank", ([TEXT | {"text": "x "}],), GOOD, ""),
        ("a foreign signature", ([{"type": "thinking", "thinking": "x", "signature": "EqQB"}], [TEXT]), GOOD, ""),
        ("no signature", ([{"type": "thinking", "thinking": "x"}], [TEXT]), GOOD, ""),
        ("an unknown block in an answer", ([{"type": "of_next_year"}], [TEXT]), GOOD, ""),
        ("a PDF", ([TEXT], [PDF]), 400, "messages.2.content.0: documents must have a source of type text or content"),
    )),
    row("IN11", "an answer first", said("x", "assistant"), GOOD, only=(ANTHROPIC,)),
    row("IN11", "result without call, as items", of_items({}, RESULT_ITEM), 400,
        "No tool call found for function call output with call_id call_1.", param="input", only=(RESPONSES,)),
    row("IN11", "call without result", of_items({}, CALL_ITEM), 400, "No tool output found for function call call_1.",
        param="input", only=(RESPONSES,)),
    row("IN11", "two calls of one id", of_items({}, CALL_ITEM, CALL_ITEM), 400,
        "input[2]: the call_id call_1 is that of an earlier call", param="input[2]", only=(RESPONSES,)),
    row("IN11", "two results", of_items({}, CALL_ITEM, RESULT_ITEM, RESULT_ITEM), 400,
        "input[3]: the call call_1 has a result already", param="input[3]", only=(RESPONSES,)),
    row("IN11", "one item twice", of_items(*[{"role": "user", "content": "x", "id": "msg_1"}] * 2), 400,
        "Duplicate item found with id msg_1. Remove duplicate items from your input and try again.", param="input",
        only=(RESPONSES,)),
    row("IN11", "unknown item", of_items({}, {"type": "jump"}), 400,
        "input[1]: items of type jump are not supported", param="input[1]", only=(RESPONSES,)),
    row("IN11", "unknown part", of_items({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}), 400,
        "input[0]: content parts of type input_file are not supported, or not complete", param="input[0]",
        only=(RESPONSES,)),
    row("IN11", "empty content", of_items({"role": "user", "content": []}), GOOD, only=(RESPONSES,)),
    row("IN13", "junk", with_image("!!!!"), 400, NO_BASE64, param="images"),
    row("IN13", "bad padding", with_image("AAA"), 400, NO_BASE64, param="images"),
    row("IN13", "no comma", with_image("data:image/png;base64", plain=True), 400, NO_BASE64, param="images"),
    row("IN13", "0 bytes", with_image(""), 400, NO_IMAGE, param="images"),
    row("IN13", "wrong type", with_image(5, plain=True), 400,
        {OPENAI: "messages[0].content[0] must have a text, an image_url with its url, or a refusal",
         ANTHROPIC: "messages.0.content.0: images must have a base64 source", OLLAMA: "messages[0].images[0] must be of type string"},
        param="messages"),
    row("IN14", "65,535² PNG", with_image(png(65_535, 65_535)), 400, TOO_MANY_PIXELS, param="images"),
    row("IN14", "65,535² GIF", with_image(gif(65_535, 65_535)), 400, TOO_MANY_PIXELS, param="images"),
    row("IN14", "GIF of 10,000 frames", with_image(animated(10_000)), 400, ONE_FRAME, param="images"),
    row("IN14", "GIF of one frame", with_image(animated(1)), GOOD),
    row("IN14", "PNG of 10,000 frames", with_image(animated_png(10_000)), 400, ONE_FRAME, param="images"),
    row("IN14", "WebP of 2 frames", with_image(animated_webp(2)), 400, ONE_FRAME, param="images"),
    row("IN14", "SVG", with_image(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), 400, NO_IMAGE, param="images"),
    row("IN14", "JPEG 2000", with_image(b"\0\0\0\x0cjP  \r\n\x87\n"), 400, NO_IMAGE, param="images"),
    *(
        row("IN16", url, with_image(url, plain=True), 400, NO_URLS, param="messages", only=(OPENAI,))
        for url in ("http://169.254.169.254/latest", "https://[::ffff:127.0.0.1]/", "http://0x7f.1/")
    ),
    row("IN16", "URL as a source", with_source({"type": "url", "url": "http://169.254.169.254/latest"}), 400, NO_URLS,
        param="messages", only=(ANTHROPIC,)),
    row("IN16", "URL among images", with_image("http://169.254.169.254/latest"), 400, NO_URLS, param="images",
        only=(OLLAMA,)),
    row("IN16", "HTTP:", with_image("HTTP://localhost/", plain=True), 400, NO_URLS, param="images", only=(OPENAI,)),
    row("IN16", "file:", with_image("file:///etc/passwd", plain=True), 400, NO_BASE64, param="images"),
    *(
        row("IN17", what, with_grammar(text), 400, GBNF + said_of_it, param="grammar", only=(OPENAI, ANTHROPIC))
        for what, text, said_of_it in (
            ("nesting", "root ::= " + "(" * 101 + '"a"' + ")" * 101, "groups are nested deeper than 100 (line 1)"),
            ("left recursion without a beginning", 'root ::= root "a"', "no answer matches it"),
            ("a rule that is itself", "root ::= root", "no answer matches it"),
            ("no root", 'a ::= "a"', "it has no rule 'root' (line 1)"),
            ("2,001 times", 'root ::= "a"{2001}', "something repeats more often than 2000 times (line 1)"),
        )
    ),
    row("IN17", "1 MiB", with_grammar('root ::= "' + "a" * 2**20 + '"'), 400, "grammar has more than 65536 bytes",
        param="grammar", only=(OPENAI, ANTHROPIC)),
    row("IN18", "depth", with_schema(nested(33)), 400,
        in_schema("the schema in {} is nested deeper than 32 levels"), param="response_format", only=NOT_ANTHROPIC),
    row("IN18", "URL", with_schema({"$ref": "https://example.com/x"}), 400,
        in_schema("the schema in {} refers to something outside itself"), param="response_format", only=NOT_ANTHROPIC),
    row("IN18", "cycle", with_schema({"$ref": "#"}), 400,
        in_schema("{} cannot be used: no answer matches it"), param="response_format",
        only=NOT_ANTHROPIC),
    row("IN18", "enum", with_schema({"enum": list(range(10_001))}), 400,
        in_schema("the schema in {} has an enum of more than 10000 values"), param="response_format", only=NOT_ANTHROPIC),
    row("IN18", "nested pattern", with_schema({"type": "string", "pattern": "(" * 17 + "a" + ")" * 17}), 400,
        in_schema("the schema in {} has a pattern nested deeper than 16 groups"), param="response_format", only=NOT_ANTHROPIC),
    row("IN18", "long pattern", with_schema({"type": "string", "pattern": "a" * 513}), 400,
        in_schema("the schema in {} has a pattern of more than 512 characters"), param="response_format", only=NOT_ANTHROPIC),
    row("IN18", "type 5", with_schema({"type": 5}), 400,
        in_schema("the schema in {} has a type that is none of JSON's"), param="response_format", only=NOT_ANTHROPIC),
    row("IN19", "10,000 tools", with_tools(10_000), 400,
        {OLLAMA: "a request can have 1024 tools",
         OPENAI: "tools: List should have at most 1024 items after validation, not 10000",
         ANTHROPIC: "tools: List should have at most 1024 items after validation, not 10000"},
        param="tools"),
    row("IN19", "200 tools", with_tools(200), GOOD),
    row("IN19", "1,024 tools", with_tools(1024), GOOD, only=(ANTHROPIC, OLLAMA)),
    row("IN19", "name", with_tools(name="../x"), 400,
        {OPENAI: "tools[0] is no function with a valid name", OLLAMA: "tools[0] is no function with a valid name",
         ANTHROPIC: "tools.0.name: must be 1 to 128 letters, digits, _ and -"}, param="tools[0]"),
    row("IN19", "a name of 128", with_tools(name="x" * 128), GOOD, only=(ANTHROPIC, OLLAMA)),
    row("IN19", "a huge schema", with_tools(parameters={"anyOf": [{"type": "string"}] * 5001}), 400,
        "the schema in tools[0] has more than 5000 parts", param="tools[0]"),
    row("IN19", "a server's tool", lambda path: chat(path, tools=[WEB_SEARCH]), GOOD, only=(ANTHROPIC,)),
    row("IN19", "a server's tool is forced", lambda path: chat(path, tools=[WEB_SEARCH], tool_choice=FORCED), 400,
        "tool_choice names 'web_search', which is not among the tools", param="tool_choice", only=(ANTHROPIC,)),
    row("IN19", "a type without a date", lambda path: chat(path, tools=[{"type": "function", "name": "x"}]), 400,
        "tools.0: tools of type function are not supported", param="tools", only=(ANTHROPIC,)),
    *(row("IN10", name, with_field(name, {"type": "x"}), 400, f"{name} is not supported", param=name, only=(ANTHROPIC,))
      for name in ("mcp_servers", "container", "compaction", "thread")),
    row("IN18", "an unknown form", lambda path: chat(path, output_config={"format": {"type": "regex"}}), 400,
        "output_config.format must be of type json_schema", param="output_config.format", only=(ANTHROPIC,)),
    row("IN18", "no schema", lambda path: chat(path, output_format={"type": "json_schema"}), 400,
        "output_format must have a schema that is an object", param="output_format", only=(ANTHROPIC,)),
    row("IN18", "two forms", lambda path: chat(path, output_format=FORM, output_config={"format": FORM}), 400,
        "output_config.format and output_format exclude each other", param="output_format", only=(ANTHROPIC,)),
    row("IN19", "type: 5", with_tools(parameters={"type": 5}), 400,
        "the schema in tools[0] has a type that is none of JSON's", param="tools[0]"),
    row("IN19", "recursive parameters", with_tools(parameters={"$ref": "#"}), 400,
        "the schema in tools[0] is nothing but itself", param="tools[0]"),
    row("IN19", "unknown tool", of_items(tools=[{"type": "\r\nx: y"}]), GOOD, only=(RESPONSES,)),
    row("IN19", "1,025 tools", of_items(tools=[{"type": "odd"}] * 1025), 400,
        "tools: List should have at most 1024 items after validation, not 1025", param="tools", only=(RESPONSES,)),
    row("IN19", "grammar of 1 MiB",
        of_items(tools=[{"type": "custom", "name": "look", "format": {"type": "grammar", "syntax": "lark",
                                                                      "definition": "start: " + "(" * 2**20}}]),
        GOOD, only=(RESPONSES,)),
    row("IN19", "allowed tools in each other",
        of_items(tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "allowed_tools"}]}), 400,
        "tool_choice forces a tool of type allowed_tools, which this server does not run", param="tool_choice",
        only=(RESPONSES,)),
    row("IN20", "kwargs beyond scalars", lambda path: chat(path, chat_template_kwargs={"a": {"b": 1}}), 400,
        "chat_template_kwargs must be scalars", param="chat_template_kwargs.a", only=(OPENAI, ANTHROPIC)),
    row("IN20", "a client's template", lambda path: chat(path, chat_template="{{ x }}"), GOOD),
    row("IN22", "user of 1 MiB", lambda path: chat(path, user="u" * 2**20), 400,
        "user: String should have at most 512 characters", param="user", only=(OPENAI,)),
    row("IN22", "user_id of 1 MiB", lambda path: chat(path, metadata={"user_id": "u" * 2**20}), 400,
        "metadata.user_id: String should have at most 512 characters", param="metadata", only=(ANTHROPIC,)),
    row("IN22", "cache key of odd bytes", lambda path: chat(path, prompt_cache_key="\r\n\0\x1b[31m"), GOOD),
    row("IN22", "cache key of 1 MiB", lambda path: chat(path, prompt_cache_key="k" * 2**20), 400,
        "prompt_cache_key: String should have at most 512 characters", param="prompt_cache_key", only=(OPENAI,)),
    *(
        row("IN23", repr(name[:16]), named(name), 404, **not_found(name))
        for name in ("../../etc/passwd", "a%2fb", "C:\\x", "//x", "d\u0435mo", "a" * 10_240, ".", "demo:..")
    ),
    row("IN33", "stream yes", lambda path: chat(path, stream="yes"), 400, "stream must be of type boolean", param="stream"),
    row("IN33", "stream_options alone", lambda path: chat(path, stream_options={"include_usage": True}), 400,
        "stream_options needs stream to be true", param="stream_options", only=(OPENAI,)),
    row("IN35", "keep_alive 1e9h is clamped", lambda path: chat(path, keep_alive="1e9h"), GOOD),
    row("IN35", "num_gpu 999", option(num_gpu=999), GOOD),
    row("IN35", "main_gpu 99", option(main_gpu=99), GOOD),
    row("IN35", "main_gpu 0 where no node has a GPU", option(main_gpu=0), GOOD),
    row("IN35", "main_gpu -1", option(main_gpu=-1), 400, 'option "main_gpu" must be at least 0', param="main_gpu"),
    row("8.1", "17 stop strings", option(stop=["a"] * 17), 400, 'option "stop" must have at most 16 strings', param="stop"),
    row("8.1", "16 stop strings", option(stop=[f"a{number}" for number in range(16)]), GOOD),
    row("8.1", "1,600 stop strings", option(stop=["a"] * 1600), 400, 'option "stop" must have at most 16 strings',
        param="stop"),
    row("8.1", "257 bytes of stop", option(stop=["a" * 257]), 400, 'option "stop" must have strings of 1 to 256 bytes',
        param="stop"),
    row("8.1", "1,025 biases", option(logit_bias={str(number): 1 for number in range(1025)}), 400,
        'option "logit_bias" must have at most 1024 entries', param="logit_bias"),
    row("8.1", "1,024 biases", option(logit_bias={str(number): 1 for number in range(1024)}), GOOD),
    row("8.1", "21 logprobs", lambda path: chat(path, logprobs=True, top_logprobs=21), 400,
        "top_logprobs must be between 0 and 20", param="top_logprobs", only=NOT_ANTHROPIC),
    row("8.1", "65 parts", said([TEXT] * 65), 400, "content must be a string or at most 64 parts",
        param="messages", only=(OPENAI,)),
    row("8.1", "4,096 parts", said([TEXT] * 4096), GOOD, only=(ANTHROPIC,)),
    row("8.1", "4,097 parts", said([TEXT] * 4097), 400, "messages.0: content must be a string or at most 4096 blocks",
        param="messages", only=(ANTHROPIC,)),
    row("8.1", "64 parts", said([{"type": "text", "text": "x"}] * 64), GOOD, only=(OPENAI, ANTHROPIC)),
    row("8.1", "11 MiB of text", said("x" * (11 * 2**20)), 413, "request body without images exceeds 10485760 bytes",
        code="request_too_large"),
    row("8.1", "33 MiB", b"x" * (33 * 2**20), 413, "request body exceeds 33554432 bytes", code="request_too_large"),
    row("8.1", "64 levels", lambda path: chat(path, unheard_of=nested_lists(63)), GOOD),
    row("8.1", "65 levels", lambda path: chat(path, unheard_of=nested_lists(64)), 400,
        "request body is nested deeper than 64 levels"),
) for row in rows]
# fmt: on
