"""Results of a file of prompts: a JSON object on each line, kept whatever happens, in the order of the prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from deepinfer_core.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from deepinfer_core.engine.batch_file import PromptLine
    from deepinfer_core.outputs import CompletionOutput, Logprob, RequestOutput


def result_of(line: PromptLine, output: RequestOutput) -> dict[str, Any]:
    """What is reported of a request that has ended: its completion, or a list of them, or what went wrong."""
    errors = [completion.error for completion in output.outputs if completion.error]
    if errors:
        return failure_of(line, errors[0])
    completions = [_completion(completion) for completion in output.outputs]
    found = completions[0] if len(completions) == 1 else {"completions": completions}
    result: dict[str, Any] = {
        "id": line.id,
        "line": line.number,
        **found,
        "num_prompt_tokens": len(output.prompt_token_ids),
    }
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = [
            list(_alternatives(at)) if at is not None else None for at in output.prompt_logprobs
        ]
    return result


def failure_of(line: PromptLine, error: str) -> dict[str, Any]:
    """What is reported of a line that has no result."""
    return {"id": line.id, "line": line.number, "error": error}


class ResultsFile:
    """Writes each result when it comes, and puts all of them in the order of their lines at the end.

    So nothing that was finished is lost, even if the process is killed. Use it as a context manager.

    Attributes:
        done: Numbers of the lines that have a result without an error.
    """

    def __init__(self, file: Path, *, resume: bool = False) -> None:
        """Look at the file; it is opened by ``with``.

        Args:
            file: What it holds is replaced, unless ``resume``.
            resume: Keep the results that it holds; errors are tried again.

        Raises:
            ConfigError: It is to be kept and holds something else than results.
        """
        self._file = file
        self._is_kept = resume and file.is_file()
        self._places = _kept_places(file) if self._is_kept else {}
        self.done = frozenset(self._places)
        self._end = max((end for _, end in self._places.values()), default=0)
        self._stream: BinaryIO | None = None

    def add(self, result: Mapping[str, Any]) -> None:
        """Write one result; it is in the hands of the operating system when this returns."""
        # Half a surrogate pair, which an id may hold, cannot be written as UTF-8, but as the escape that it came from.
        text = json.dumps(result, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        self._opened.write(text)
        self._opened.flush()
        self._places[result["line"]] = (self._end, self._end + len(text))
        self._end += len(text)

    def __enter__(self) -> Self:
        """Open the file.

        Raises:
            ConfigError: It cannot be written.
        """
        try:
            self._stream = self._file.open("r+b" if self._is_kept else "wb")
            if self._is_kept:
                self._stream.truncate(self._end)
                self._stream.seek(self._end)
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be written: {error.strerror}", source="--out") from error
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()
        places = [self._places[number] for number in sorted(self._places)]
        begins = [0, *(end for _, end in places)]
        if self._file.is_file() and any(start != begin for (start, _), begin in zip(places, begins, strict=False)):
            self._put_in_order(places)

    @property
    def _opened(self) -> BinaryIO:
        if self._stream is None:
            raise InternalError("results were added to a file that is not open")
        return self._stream

    def _put_in_order(self, places: Sequence[tuple[int, int]]) -> None:
        sorted_file = self._file.with_name(f"{self._file.name}.sorting")
        with self._file.open("rb") as source, sorted_file.open("wb") as target:
            for start, end in places:
                source.seek(start)
                target.write(source.read(end - start))
        sorted_file.replace(self._file)


def _kept_places(file: Path) -> dict[int, tuple[int, int]]:
    """Where the results without an error begin and end in a file, by line number.

    Half a line at the end is what a killed run left; it does not count.
    """
    places: dict[int, tuple[int, int]] = {}
    begin = 0
    whole = file.read_bytes().rpartition(b"\n")[0]
    for place, line in enumerate(whole.split(b"\n") if whole else (), 1):
        end = begin + len(line) + 1
        number, failed = _line_number(line, f"{file} line {place}")
        if not failed:
            places[number] = (begin, end)
        begin = end
    return places


def _line_number(line: bytes, where: str) -> tuple[int, bool]:
    """Which line of the prompts a result belongs to, and whether it is an error.

    Raises:
        ConfigError: It is no result.
    """
    try:
        result: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON, so this is no file of results", "--resume") from error
    if not isinstance(result, dict) or not isinstance(result.get("line"), int):
        raise ConfigError(f"{where} has no line number, so this is no file of results", "--resume")
    return result["line"], "error" in result


def _completion(completion: CompletionOutput) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if completion.logprobs is not None:
        fields["logprobs"] = [list(_alternatives(at)) for at in completion.logprobs]
    return fields


def _alternatives(at: Mapping[int, Logprob]) -> Iterator[dict[str, Any]]:
    """The chosen token first, then its alternatives, as the engine lists them."""
    for token, value in at.items():
        yield {"token_id": token, "token": value.decoded_token, "logprob": value.logprob, "rank": value.rank}
