"""The sections of docs/troubleshooting.md, one for each error: `python -m tools.docs_errors` brings them up to date.

What a section says of statuses comes from the table of errors; what it means and what to do is written by hand below
that, and stays. An error that is new gets a section without text, which the tests refuse.
"""

import re
import sys
import textwrap

from common.errors import ERROR_TABLE, ErrorRow, Retry, error_types
from tools.docs_findings import finding_table
from tools.generated import ROOT, between, write_or_check
from tools.tidy_report import MARKDOWN_LINE_MAX

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
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
    r"^### `(?P<reason>\w+)`\n\n(?P<status>\*[^*]*\*\n\n)?(?P<text>.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL
)


def reasons() -> list[str]:
    """Every reason that callers may see, in the order of the table."""
    return [reason for reason in ERROR_TABLE if reason in error_types() or reason == "internal_error"]


def status_line(reason: str) -> str:
    """Return the status of an error in each dialect."""
    row: ErrorRow = ERROR_TABLE[reason]
    code = "" if row.openai_code == reason else f" as `{row.openai_code}`"
    line = (
        f"*OpenAI {row.openai_status}{code} · Anthropic {row.anthropic_status} `{row.anthropic_type}` · "
        f"Ollama {row.ollama_status} · gRPC {row.grpc.name}{_RETRIES[row.retry]}*"
    )
    return textwrap.fill(line, MARKDOWN_LINE_MAX, break_long_words=False, break_on_hyphens=False)


def sections(document: str) -> dict[str, str]:
    """Return the hand-written part, by reason."""
    _, _, rest = document.partition(BEGIN)
    inner, _, _ = rest.partition(END)
    return {match["reason"]: match["text"].strip() for match in _SECTION.finditer(inner)}


def with_sections(document: str) -> str:
    """Return the page with a section for each error and none for others, and with the findings of `puna doctor`.

    Raises:
        ValueError: it has no markers.
    """
    texts = sections(document)
    parts = [f"### `{reason}`\n\n{status_line(reason)}\n\n{texts.get(reason, '')}".rstrip() for reason in reasons()]
    return between(between(document, BEGIN, END, "\n\n".join(parts)), FINDINGS_BEGIN, FINDINGS_END, finding_table())


def main(arguments: list[str]) -> int:
    """Write the page, or check it. 1: not up to date."""
    wanted = {DOCUMENT: with_sections(DOCUMENT.read_text(encoding="utf-8"))}
    return write_or_check(wanted, arguments, tool="docs_errors")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
