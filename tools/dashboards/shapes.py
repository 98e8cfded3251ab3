"""Forms of queries and panels that come back."""

from tools.dashboards.grafana import Panel, Query


def stat(title: str, expr: str, *, unit: str = "short", about: str = "", red_from: float | None = None) -> Panel:
    """One number."""
    return Panel(
        title=title,
        unit=unit,
        queries=(Query(expr, ""),),
        kind="stat",
        about=about,
        width=3,
        height=4,
        red_from=red_from,
    )


def lines(
    title: str,
    unit: str,
    *queries: tuple[str, str],
    about: str = "",
    stacked: bool = False,
    minimum: float | None = 0,
) -> Panel:
    """Lines over time."""
    return Panel(
        title=title,
        unit=unit,
        queries=tuple(Query(*query) for query in queries),
        about=about,
        stacked=stacked,
        minimum=minimum,
    )


def share(title: str, *queries: tuple[str, str], about: str = "") -> Panel:
    """Lines between nothing and all."""
    return Panel(
        title=title, unit="percentunit", queries=tuple(Query(*query) for query in queries), about=about, maximum=1
    )


def rate(metric: str, by: str, matchers: str = "") -> str:
    """Return the query of a counter's growth per second, summed."""
    return f"sum by ({by}) (rate({metric}{matchers}[$__rate_interval]))"


def quantile(level: float, metric: str, by: str, matchers: str = "") -> str:
    """Of a histogram."""
    return f"histogram_quantile({level}, sum by ({by}, le) (rate({metric}_bucket{matchers}[$__rate_interval])))"
