from bench.figures import Round, agreeing_shares, summarise_rounds, summarise_streams, table
from bench.stream_client import StreamResult


def stream(sent_s: float, first_token_s: float, end_s: float, tokens: int = 10, text: str = "x") -> StreamResult:
    return StreamResult(
        sent_s=sent_s,
        first_token_s=first_token_s,
        end_s=end_s,
        prompt_tokens=5,
        completion_tokens=tokens,
        cached_tokens=0,
        pieces_s=(first_token_s,),
        text=text,
        finish_reason="length",
    )


def rounds_of(server: str, *speeds: float, text: str = "x") -> list[Round]:
    return [summarise_streams(server, [stream(0.0, 0.1, 10 / speed, text=text)]) for speed in speeds]


def test_a_round_lasts_from_the_first_request_to_the_last_end() -> None:
    entry = summarise_streams("a", [stream(1.0, 1.5, 3.0), stream(2.0, 2.25, 5.0)])

    assert entry.tokens_per_s == 20 / 4
    assert entry.first_token_s == (0.5, 0.25)


def test_a_summary_is_the_median_of_its_rounds() -> None:
    (summary,) = summarise_rounds(rounds_of("a", 10.0, 30.0, 20.0))

    assert summary.tokens_per_s == 20.0


def test_the_table_shows_ours_over_the_peer() -> None:
    summaries = summarise_rounds([*rounds_of("ours", 30.0), *rounds_of("peer", 20.0)])

    assert table(summaries, "ours", "peer")[2] == "| 1 | 30 | 20 | 1.50 | 100.0 | 100.0 | 1.00 |"


def test_answers_agree_only_word_for_word() -> None:
    rounds = [*rounds_of("ours", 1.0, 1.0), *rounds_of("peer", 1.0), *rounds_of("peer", 1.0, text="y")]

    assert agreeing_shares(rounds, "ours", "peer") == {1: 0.5}
