"""`puna doctor`: look at everything, and say what to do."""

from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from cli.core.doctor.findings import Finding, Level, has_failed, summary
from cli.core.exit_codes import ExitCode
from cli.doctor.environment import all_settings, unknown_names, without
from cli.doctor.examination import examine
from cli.errors import CommandFailed
from cli.output import print_json, print_table

_STYLES = {Level.OK: "green", Level.SKIP: "dim", Level.WARN: "yellow", Level.FAIL: "bold red"}
_LEVEL_WIDTH, _AREA_WIDTH = 4, 11


def doctor(*, with_settings: bool, as_json: bool) -> None:
    """Print every finding as it comes.

    Raises:
        CommandFailed: something failed.
    """
    unknown = unknown_names()
    console = Console(highlight=False, soft_wrap=True)
    findings: list[Finding] = []
    with without(unknown):
        settings = all_settings()
        for finding in examine(unknown, settings):
            findings.append(finding)
            if not as_json:
                print_finding(console, finding)
    if as_json:
        rows = [{name: value for name, value in asdict(one).items() if name != "text"} for one in settings]
        print_json({"ok": not has_failed(findings), "findings": list(map(asdict, findings)), "settings": rows})
    elif with_settings:
        print()
        print_table(
            ("SETTING", "VALUE", "FROM"), [(one.name, one.value, one.variable or one.source) for one in settings]
        )
    if has_failed(findings):
        raise CommandFailed(summary(findings), ExitCode.FAILED)
    if not as_json:
        print(summary(findings))


def print_finding(console: Console, finding: Finding) -> None:
    """Print one line, and what to do about it on the next."""
    level = Text(finding.level.ljust(_LEVEL_WIDTH), style=_STYLES[finding.level])
    console.print(Text.assemble(level, "  ", finding.area.ljust(_AREA_WIDTH), "  ", finding.text))
    if finding.advice:
        console.print(Text(" " * (_LEVEL_WIDTH + _AREA_WIDTH + 4) + finding.advice, style="italic"))
