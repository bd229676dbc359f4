"""One thread that owns an engine, for callers in other threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from deepinfer_core.errors import InternalError, RequestError
from deepinfer_core.logging import get_logger

if TYPE_CHECKING:
    from deepinfer_core.engine.engine import Engine
    from deepinfer_core.outputs import RequestOutput

log = get_logger(__name__)

Result = TypeVar("Result")
Listener = Callable[["RequestOutput | Exception"], None]
"""Takes the records of one request, in the engine's thread; an exception instead says that the engine broke."""


class EngineThread:
    """Steps an engine while there is work, and sleeps while there is none.

    Whatever touches the engine runs in its thread, between two steps; callers get a future.
    """

    def __init__(self, engine: Engine) -> None:
        """Start the thread; it ends with :meth:`stop`."""
        self._engine = engine
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._listeners: dict[str, Listener] = {}
        self._refusal: Exception | None = None
        self._gate = threading.RLock()
        self._thread = threading.Thread(target=self._work, name="deepinfer-engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[Engine], Result]) -> Future[Result]:
        """Run a function on the engine between two steps; its result or exception comes with the future."""
        call = _Call(lambda: function(self._engine))
        with self._gate:
            if self._refusal is None:
                self._calls.put(call)
            else:
                call.future.set_exception(self._refusal)
        return call.future

    def add(self, request_id: str, add: Callable[[Engine], None], listener: Listener) -> Future[None]:
        """Add a request and send its records to a listener.

        Args:
            request_id: The request's.
            add: Calls ``Engine.add``; what it raises comes with the future, and then there are no records.
            listener: Gets the records.
        """

        def add_and_listen(engine: Engine) -> None:
            add(engine)
            self._listeners[request_id] = listener

        return self.call(add_and_listen)

    def discard(self, request_id: str, listener: Listener) -> None:
        """End the request of a listener that has gone; nothing happens if that has ended, or was never added."""

        def discard(engine: Engine) -> None:
            if self._listeners.get(request_id) == listener:
                del self._listeners[request_id]
                engine.discard([request_id])

        self.call(discard)

    def stop(self) -> None:
        """Abort everything, tell the listeners, close the engine and end the thread; more calls do nothing."""
        with self._gate:
            if self._refusal is None:
                self._refusal = RequestError("the engine is closed and takes no more requests; open the model again")
                self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        try:
            while self._serve():
                self._deliver(self._engine.step())
            self._deliver(self._engine.close())
        except Exception as error:
            log.exception("the engine broke")
            self._break(error)

    def _serve(self) -> bool:
        """Run what callers want until there is a step to run; False when the thread is to end."""
        while True:
            try:
                call = self._calls.get(block=not self._engine.has_unfinished)
            except queue.Empty:
                return True
            if call is None:
                return False
            call.run()

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            listener = self._listeners[output.request_id]
            if output.finished:
                del self._listeners[output.request_id]
            listener(output)

    def _break(self, error: Exception) -> None:
        """Tell everybody that nothing will come any more."""
        broken = InternalError(f"the engine broke ({type(error).__name__}: {error}); please report it")
        broken.__cause__ = error
        with self._gate:
            self._refusal = broken
        for listener in self._listeners.values():
            listener(broken)
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                call.future.set_exception(broken)


class _Call:
    """A function to run in the engine's thread, and where its result goes."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._function = function

    def run(self) -> None:
        """Run it unless nobody waits any more."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._function())
        except Exception as error:  # noqa: BLE001  # whatever it is belongs to whoever called
            self.future.set_exception(error)
