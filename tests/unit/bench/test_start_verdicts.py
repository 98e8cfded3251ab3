"""The bar of starts."""

import pytest

from bench.starts import judge

SPAWNED = [{"listens_s": 0.4, "ready_s": 2.0}]


@pytest.mark.parametrize(
    ("listens_s", "ready_s", "peer_s", "reached"),
    [(0.06, 1.0, [1.0], True), (0.06, 1.1, [1.0], False), (0.11, 0.9, [1.0], False), (0.06, 0.9, [], None)],
)
def test_a_start_is_compared_with_the_peer(
    listens_s: float, ready_s: float, peer_s: list[float], reached: bool | None
) -> None:
    forked = [{"listens_s": listens_s, "ready_s": ready_s}] * 3 + [{"listens_s": 9.0, "ready_s": 9.0}]
    peer = [{"ready_s": seconds} for seconds in peer_s]
    verdict = judge({"forked": forked, "spawned": SPAWNED, "llama-server": peer})
    assert verdict.reached is reached
    assert f"listens after {1000 * listens_s:.0f} ms" in verdict.text
