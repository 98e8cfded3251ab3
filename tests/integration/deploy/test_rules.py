"""Input of Prometheus: rules and configurations that it accepts, alerts that fire when they should, only then."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trust import Cluster

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = ("recording.yml", "alerts.yml")
CONFIGS = ("prometheus.yml", "tls.yml", "local.yml", "kubernetes.yml")
# Debian builds Prometheus without it; what stands around it is checked all the same.
KUBERNETES = "kubernetes_sd_configs"
TRUST = "/etc/puna/trust"
TESTS = tuple(sorted((PROMETHEUS / "tests").glob("*.yml")))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (make deps-system)"
)


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False, timeout=60)


def rules_of(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = rules_of("alerts.yml")


def anchors(document: Path) -> set[str]:
    """As pages make them of headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check(name: str, certificate: Path, *, kubernetes: bool = True) -> subprocess.CompletedProcess[str]:
    """As the scraper of a cluster would, whose certificate lies elsewhere here."""
    text = (PROMETHEUS / name).read_text(encoding="utf-8").replace(TRUST, str(certificate))
    config = yaml.safe_load(text)
    if not kubernetes:
        discoveries = [job.pop(KUBERNETES) for job in config["scrape_configs"] if KUBERNETES in job]
        assert {one["role"] for discovery in discoveries for one in discovery} == {"pod"}
    with tempfile.NamedTemporaryFile("w", dir=PROMETHEUS, suffix=".tmp", encoding="utf-8") as file:
        yaml.safe_dump(config, file)
        file.flush()
        return promtool("check", "config", file.name)


@needs_promtool
@pytest.mark.parametrize("name", RULES)
def test_rules_are_accepted(name: str) -> None:
    done = promtool("check", "rules", name)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_are_accepted_with_their_rules(name: str, tmp_path: Path) -> None:
    certificate = Cluster(tmp_path).directory("metrics")
    done = check(name, certificate)
    if f"field {KUBERNETES} not found" in done.stdout + done.stderr:
        done = check(name, certificate, kubernetes=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


@needs_promtool
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules_do_what_their_tests_say(path: Path) -> None:
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_a_wrong_expectation_is_noticed(tmp_path: Path) -> None:
    text = (PROMETHEUS / "tests" / "alerts.yml").read_text(encoding="utf-8")
    broken = tmp_path / "broken.yml"
    rules = ", ".join(str(PROMETHEUS / name) for name in RULES)
    text = text.replace("[../recording.yml, ../alerts.yml]", f"[{rules}]").replace("value: 1}", "value: 2}")
    broken.write_text(text, encoding="utf-8")
    assert promtool("test", "rules", str(broken)).returncode != 0


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = yaml.safe_load((PROMETHEUS / "tests" / "alerts.yml").read_text(encoding="utf-8"))["tests"]
    expected = {case["name"]: bool(case["promql_expr_test"][0]["exp_samples"]) for case in cases}
    for alert in ALERTS:
        assert expected[f"{alert['alert']} fires"] is True
        assert expected[f"{alert['alert']} does not fire"] is False
    names = {case["name"]: case["promql_expr_test"][0]["expr"] for case in cases}
    assert all(f'"{name.split()[0]}"' in expr for name, expr in names.items())


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_says_what_it_is_and_where_to_read_on(alert: dict[str, Any]) -> None:
    notes = alert["annotations"]
    assert len(notes["summary"]) > 10
    assert len(notes["description"]) > 10
    assert alert["labels"]["severity"] in ("critical", "warning")
    document, _, anchor = notes["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower()
    assert anchor in anchors(ROOT / document)


def test_no_alert_or_rule_is_there_twice_and_recordings_say_what_they_are() -> None:
    names = [rule.get("alert") or rule["record"] for name in RULES for rule in rules_of(name)]
    assert len(names) == len(set(names))
    assert [rule["record"] for rule in rules_of("recording.yml") if rule["record"].count(":") != 2] == []
