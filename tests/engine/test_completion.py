"""Rules that end a completion, and stop texts across tokens."""

import time

from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.engine.stop_text import StopText


def grow(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """Text before the first stop text, found piece by piece."""
    search, text = StopText(stops), ""
    for piece in pieces:
        text += piece
        found = search.find(text, len(piece))
        if found:
            return text[: found.start], found.stop
    return text, None


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5), st.data())
def test_any_split_into_pieces_finds_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    kept, stop = grow(stops, pieces)

    letter_by_letter, _ = grow(stops, list(text))
    assert (stop is None) == (not any(s in text for s in stops))
    assert len(kept) <= len(letter_by_letter) or kept == letter_by_letter or stop is not None


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5))
def test_what_may_begin_a_stop_text_is_held_back(text: str, stops: list[str]) -> None:
    held = StopText(stops).num_held_back(text)

    longest = max((n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
    assert held == longest


def test_ten_thousand_stop_texts_cost_little_per_token() -> None:
    search = StopText([f"stop number {n}" for n in range(10_000)])
    text = "a long answer " * 1000

    start = time.perf_counter()
    for _ in range(50):
        search.find(text, 5)
        search.num_held_back(text)

    print(f"{(time.perf_counter() - start) / 50 * 1e3:.2f} ms per token")
    assert search.find(text + "stop number 77", 3) is not None
