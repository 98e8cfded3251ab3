"""The sections of docs/troubleshooting.md, one for each error: `python -m tools.docs_errors` brings them up to date.

What a section says of statuses comes from the table of errors; what it means and what to do is written by hand below
that, and stays. An error that is new gets a section without text, which the tests refuse.
"""

import re
import sys
from pathlib import Path

from common.errors import ERROR_TABLE, ErrorRow, Retry, error_types
from tools.docs_findings import finding_table

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "troubleshooting.md"
BEGIN = "<!-- errors: the headings and the lines of statuses are from the code: python -m tools.docs_errors -->"
END = "<!-- end of errors -->"
FINDINGS_BEGIN = "<!-- findings, from the code: python -m tools.docs_errors -->"
FINDINGS_END = "<!-- end of findings -->"
_RETRIES = {
    Retry.UNSAID: "",
    Retry.NEVER: " · trying again does not help",
    Retry.LATER: " · try again after `Retry-After`",
}
_SECTION = re.compile(
    r"^### `(?P<reason>\w+)`\n\n(?P<status>\*[^\n]*\*\n\n)?(?P<text>.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL
)


def reasons() -> list[str]:
    """Every reason that callers may see, in the order of the table."""
    return [reason for reason in ERROR_TABLE if reason in error_types() or reason == "internal_error"]


def status_line(reason: str) -> str:
    """How the dialects say it."""
    row: ErrorRow = ERROR_TABLE[reason]
    code = "" if row.openai_code == reason else f" as `{row.openai_code}`"
    return (
        f"*OpenAI {row.openai_status}{code} · Anthropic {row.anthropic_status} `{row.anthropic_type}` · "
        f"Ollama {row.ollama_status} · gRPC {row.grpc.name}{_RETRIES[row.retry]}*"
    )


def sections(document: str) -> dict[str, str]:
    """What is written by hand, by reason."""
    _, _, rest = document.partition(BEGIN)
    inner, _, _ = rest.partition(END)
    return {match["reason"]: match["text"].strip() for match in _SECTION.finditer(inner)}


def with_sections(document: str) -> str:
    """The page with a section for each error and none for others, and with what `puna doctor` finds.

    Raises:
        ValueError: it has no markers.
    """
    head, tail = _around(document, BEGIN, END)
    before, after = _around(tail, FINDINGS_BEGIN, FINDINGS_END)
    texts = sections(document)
    parts = [f"### `{reason}`\n\n{status_line(reason)}\n\n{texts.get(reason, '')}".rstrip() for reason in reasons()]
    tail = f"{before}{FINDINGS_BEGIN}\n\n{finding_table()}\n\n{FINDINGS_END}{after}"
    return "\n\n".join([f"{head}{BEGIN}", *parts, f"{END}{tail}"])


def _around(text: str, begin: str, end: str) -> tuple[str, str]:
    head, found, rest = text.partition(begin)
    _, ended, tail = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{DOCUMENT.name} lacks the markers {begin} and {end}")
    return head, tail


def main() -> int:
    """Write the page."""
    DOCUMENT.write_text(with_sections(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
