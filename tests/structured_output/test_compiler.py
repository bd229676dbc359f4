"""Compiling beside the engine: time limit, cache, errors that stay with their request."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.structured_output import compiler as module
from deepinfer_core.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from deepinfer_core.structured_outputs_params import StructuredOutputsParams
from tests.structured_output.workshop import EOS, TOKENIZER, VOCAB_SIZE, tokens_of, vocabulary


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def params(**form: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**form)


def test_equal_forms_share_one_grammar() -> None:
    compiler = GrammarCompiler(vocabulary())
    first = compiler.compile(params(regex="a+")).result()

    again = compiler.compile(params(regex="a+", trigger_token_ids=[5]))

    assert again.done()
    assert again.result() is first
    assert compiler.compile(params(regex="b+")).result() is not first
    schema = {"type": "object"}
    assert (
        compiler.compile(params(json=schema)).result()
        is not compiler.compile(params(json=schema, whitespace="any")).result()
    )


def test_the_trigger_is_that_of_the_request() -> None:
    compiler = GrammarCompiler(vocabulary())

    assert not compiler.compile(params(regex="a", trigger_token_ids=[5])).matcher().is_constrained
    assert compiler.compile(params(regex="a")).matcher().is_constrained


def test_matchers_of_one_grammar_do_not_meet() -> None:
    grammar = GrammarCompiler(vocabulary()).compile(params(regex="ab")).result()
    first, second = grammar.matcher(), grammar.matcher()

    assert first.accept(tokens_of("a")[0])
    assert not second.accept(tokens_of("b")[0])


def test_the_least_used_is_forgotten() -> None:
    compiler = GrammarCompiler(vocabulary(), max_cached=2)
    kept = compiler.compile(params(regex="a")).result()
    gone = compiler.compile(params(regex="b")).result()
    compiler.compile(params(regex="a")).result()
    compiler.compile(params(regex="c")).result()

    assert compiler.compile(params(regex="a")).result() is kept
    assert compiler.compile(params(regex="b")).result() is not gone


def test_bytes_are_bounded_too() -> None:
    compiler = GrammarCompiler(vocabulary(), max_cached_bytes=1)
    first = compiler.compile(params(regex="a")).result()
    compiler.compile(params(regex="b")).result()

    assert compiler.compile(params(regex="a")).result() is not first


def test_a_mistake_is_the_request_s_own() -> None:
    compiler = GrammarCompiler(vocabulary())
    wrong = compiler.compile(params(regex="(?=a)b"))
    right = compiler.compile(params(regex="a"))

    for _ in range(2):  # the second time from the cache
        with pytest.raises(RequestError, match=r"at character 0: .* look-ahead"):
            compiler.compile(params(regex="(?=a)b")).result()
    with pytest.raises(RequestError):
        wrong.matcher()
    assert right.result().warnings == ()


def test_time_runs_from_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    source = module.grammar_source

    def slow(*args: Any) -> Any:
        go_on.wait(60)
        return source(*args)

    monkeypatch.setattr(module, "grammar_source", slow)
    clock = Clock()
    compiler = GrammarCompiler(vocabulary(), time_limit_s=20.0, clock=clock, num_threads=1)
    waiting = compiler.compile(params(regex="a"))
    assert not waiting.done()
    clock.now += 15
    later = compiler.compile(params(regex="a"))
    clock.now += 5

    assert waiting.done()
    with pytest.raises(RequestError, match=r"structured_outputs\.regex: compiling took more than 20 s"):
        waiting.result()
    assert not later.done()
    go_on.set()
    assert later.result().warnings == ()
    assert waiting.result().warnings == ()  # it is there now


def test_nothing_escapes_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As the library's bindings raise."""

    def broken(*args: Any) -> Any:
        raise Panic("index out of bounds")

    monkeypatch.setattr(module, "grammar_source", broken)
    compiler = GrammarCompiler(vocabulary(), num_threads=1)

    with pytest.raises(RequestError, match=r"the compiler failed \(Panic: index out of bounds\)"):
        compiler.compile(params(regex="a")).result()
    monkeypatch.undo()
    assert compiler.compile(params(regex="b")).result().warnings == ()


@pytest.mark.parametrize("text", ["no JSON", '{"model": 3}'])
def test_a_tokenizer_that_cannot_be_used_is_no_request_s_mistake(text: str) -> None:
    broken = GrammarVocabulary(read_tokenizer=lambda: text, vocab_size=VOCAB_SIZE, eos_token_id=EOS)

    with pytest.raises(ConfigError, match="structured outputs: this tokenizer cannot be used"):
        GrammarCompiler(broken).compile(params(regex="a")).result()


def test_the_tokenizer_is_read_once_and_by_a_worker() -> None:
    threads: list[str] = []

    def read() -> str:
        threads.append(threading.current_thread().name)
        return TOKENIZER.read_text(encoding="utf-8")

    compiler = GrammarCompiler(GrammarVocabulary(read_tokenizer=read, vocab_size=VOCAB_SIZE, eos_token_id=EOS))
    compiler.prepare()
    for text in "abc":
        compiler.compile(params(regex=text)).result()

    assert len(threads) == 1
    assert threads[0].startswith("deepinfer-grammar")


def test_a_closed_compiler_begins_nothing() -> None:
    compiler = GrammarCompiler(vocabulary())
    compiler.close()

    with pytest.raises(RuntimeError):
        compiler.compile(params(regex="a"))


def test_warnings_name_what_is_left_out() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"not": {}}}
    grammar = GrammarCompiler(vocabulary()).compile(params(json=schema, unenforced="warn")).result()

    assert [warning.split(" is")[0] for warning in grammar.warnings] == ["#: 'uniqueItems'", "#/items: 'not'"]
