"""Texts that `puna load` prints while it waits."""

import pytest

from cli.core.news import load_text


@pytest.mark.parametrize(
    ("news", "text"),
    [
        ({"status": "queued", "position": 2}, "waits, position 2"),
        (
            {"status": "queued", "position": 1, "waits_for": "m:latest to be gone", "eta_s": 75.2},
            "waits, position 1, for m:latest to be gone, about 1 minute left",
        ),
        ({"status": "loading", "fraction": 0.5, "eta_s": 12.7}, "loading 50%, about 12 seconds left"),
        ({"status": "loading", "fraction": 1.0, "eta_s": 0.0}, "loading 100%"),
        ({"status": "ready"}, "ready"),
    ],
)
def test_news_tell_what_comes_first_and_how_long_it_takes_where_that_is_known(
    news: dict[str, object], text: str
) -> None:
    assert load_text(news) == text
