"""The summary of a run as a table: bars kept and missed, and the proxies of others beside them."""

from typing import Any


def table(summary: dict[str, Any]) -> str:
    """Lines of Markdown."""
    added = summary["added_first_token_ms"]
    lines = [
        "| | added p50 ms | added p99 ms | CPU ms/request | tokens/s of one core |",
        "|---|---:|---:|---:|---:|",
        _row("Puna", added, summary),
        *(
            _row(f"{name}, {peer['rate']:g} requests/s", peer["added_first_token_ms"], peer)
            for name, peer in summary["peers"].items()
        ),
        *_tls(summary.get("tls")),
        "",
        f"{summary['failed_requests']} requests of the open loops failed",
        *(f"{'kept  ' if holds else 'missed'}  {bar}" for bar, holds in summary["holds"].items()),
    ]
    return "\n".join(lines)


def _tls(cost: dict[str, Any] | None) -> list[str]:
    if cost is None:
        return []
    added, share = cost["added_first_token_p50_ms"], cost["tokens_per_core_share"]
    return ["", f"mutual TLS: {added:+.3f} ms at p50, {share:.3f} of the tokens/s of one core"]


def _row(name: str, added: dict[str, float], figures: dict[str, Any]) -> str:
    return (
        f"| {name} | {added['p50']:.2f} | {added['p99']:.2f} | {figures['cpu_ms_per_request']:.2f} "
        f"| {figures['relayed_tokens_per_core_s']} |"
    )
