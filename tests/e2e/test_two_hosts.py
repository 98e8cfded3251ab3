"""Two hosts on loopback with one small device each: a model over both, through the whole cluster, without root."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.namespaces import ENDLESS, running_hosts
from tests.waiting import wait_until
from tools.model_zoo import build, shape
from tools.model_zoo.recipe import WeightType


@pytest.mark.timeout(600)
def test_a_model_too_big_for_each_node_runs_over_both_and_ends_with_a_lender(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    base = shape("57m")
    recipe = replace(
        base, name="big", weights=WeightType.F16, vocabulary_tokens=1024, kv_heads=8, context_tokens=1 << 16
    )
    build(recipe, models)
    sizes = {"num_ctx": 24_576, "require_gpu": True}
    with running_hosts(tmp_path, models, names=("a", "b"), device_mib=512) as hosts:
        answer = hosts.answer("big", **sizes, **ENDLESS)
        assert answer.status_code == 200, answer.text
        assert answer.json()["eval_count"] == 16
        ((head, _),) = hosts.runners()
        held = {name: machine.devices[0].used_bytes() for name, machine in hosts.machines.items()}
        assert all(held.values()), held
        lender = next(machine for name, machine in hosts.machines.items() if name != head)
        assert lender.host is not None
        lender.host.kill()
        wait_until(lambda: not hosts.runners(), deadline_s=60, what="the runner has ended with its lender")
        refused = hosts.generate("big", **sizes)
        assert refused.status_code >= 500, refused.text
        assert refused.json()["error"]
