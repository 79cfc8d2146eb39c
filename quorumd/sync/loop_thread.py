"""An event loop in a thread of its own, and calls into it that wait for their result.

`blocking`, `in_loop` and `iterating` make methods of classes whose objects have a `_thread`, and as `_inner`
the object of the library that they stand for. Such a method has the signature and the documentation of the
one that it calls, so there is nothing to keep in step.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """Calls of any thread into one event loop, which runs in a daemon thread until `close`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._check_thread()
        # A handler of a signal may call, or close, while its thread has the lock.
        self._lock = threading.RLock()
        self._is_closed = False
        self._over = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started)), name="quorumd.sync", daemon=True
        )
        try:
            self._thread.start()
            self._loop = started.result()
        except BaseException:
            # A caller that is interrupted here has nothing to close.
            started.add_done_callback(
                lambda begun: begun.result().call_soon_threadsafe(self._over.set)
            )
            raise

    async def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        await self._over.wait()

    def close(self, last: Callable[[], None]) -> None:
        """Calls `last` in the loop and ends the thread; calls that wait in other threads are cancelled.

        Again, in a forked child, or while the interpreter ends, it does nothing.
        """
        try:
            is_first = self._end(last)
        except BaseException:
            # A caller that is interrupted here does not close it again.
            self._end(last)
            raise
        if is_first:
            self._thread.join()

    def _end(self, last: Callable[[], None]) -> bool:
        """Has the thread ended by the loop. False if somebody has before, or it does not run here."""
        try:
            self._check_thread()
        except RuntimeError:
            return False
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            with suppress(RuntimeError):  # The loop may be closed already.
                self._loop.call_soon_threadsafe(last)
                self._loop.call_soon_threadsafe(self._over.set)
        return is_first

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls and awaits the function in the loop, and returns its result; raises what it raises.

        An interruption here, as KeyboardInterrupt, cancels it there and waits until it has ended. Raises
        RuntimeError if the loop is closed, if this process was forked, in the loop's own thread, and while
        the interpreter ends.
        """

        async def run() -> T:
            return await function(*args, **kwargs)

        call = _Call(run)
        try:
            self._submit(call.start)
            return call.result()
        except CancelledError:
            raise RuntimeError("the client was closed while this call was waiting") from None
        except BaseException:
            # The interruption may have come before the start, or behind the end.
            with suppress(Exception):
                self._submit(call.cancel)
                call.result()
            raise

    def run(self, function: Callable[[], T]) -> T:
        """Calls the function, which does not wait, in the loop, and returns its result. Raises as `call`."""

        async def called() -> T:
            return function()

        return self.call(called)

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enters it; leaves it again if the caller was interrupted meanwhile."""
        is_entered = False

        async def enter() -> T:
            nonlocal is_entered
            value = await context.__aenter__()
            is_entered = True
            return value

        try:
            return self.call(enter)
        except BaseException as error:
            if is_entered:
                self.leave(context, error)
            raise

    def leave(
        self, context: AbstractAsyncContextManager[object], error: BaseException | None
    ) -> None:
        """Leaves it, because of an error or None; or of an interruption that came before that had begun.

        While the interpreter ends, it does nothing: what was in the loop has stopped with it.
        """
        is_begun = False

        async def leave(error: BaseException | None) -> None:
            nonlocal is_begun
            is_begun = True
            traceback = None if error is None else error.__traceback__
            await context.__aexit__(None if error is None else type(error), error, traceback)

        try:
            self.call(leave, error)
        except _InterpreterEnds:
            pass
        except BaseException as interruption:
            if not is_begun:
                with suppress(Exception):
                    self.call(leave, interruption)
            raise

    def _check_thread(self) -> None:
        """Raises RuntimeError where the loop's thread does not run, closed or not."""
        if sys.is_finalizing():
            raise _InterpreterEnds(
                "quorumd.sync was called while the interpreter ends, which has stopped its thread"
            )
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this client was made before the process was forked: make another one in the child"
            )

    def _submit(self, callback: Callable[[], None]) -> None:
        self._check_thread()
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "quorumd.sync was called in its own thread, which would wait for itself: use the "
                "library's asyncio classes there"
            )
        with self._lock:
            self._check_open()
            try:
                self._loop.call_soon_threadsafe(callback)
            finally:
                self._check_open()  # A handler of a signal may have closed it meanwhile.

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the client is closed: make another one")


class _InterpreterEnds(RuntimeError):
    """The interpreter runs `finally`, `with` and `__del__` of what is left, and no other thread any more."""


class _Call(Generic[T]):
    """One call: `start` and `cancel` belong to the loop, `result` to the thread that waits for it."""

    def __init__(self, run: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._is_waited_for = threading.Lock()
        self._is_waited_for.acquire()
        self._outcome: Future[T] = Future()
        self._outcome.add_done_callback(lambda _: self._is_waited_for.release())
        self._run = run
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        if self._task is None:
            self._outcome.cancel()
        else:
            # Behind its first step: a task that is cancelled before that runs nothing at all.
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def result(self) -> T:
        # The future waits with a lock that the loop needs, while a handler of a signal may call the loop.
        with self._is_waited_for:
            return self._outcome.result()

    def _done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._outcome.cancel()
        elif (error := task.exception()) is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(task.result())


class Twin(Protocol):
    """Stands for an object of the library, and does its calls in the loop."""

    _thread: LoopThread
    _inner: Any


class EnteredInLoop:
    """Stands for an asynchronous context manager of the library: `with` enters and leaves it in the loop."""

    _thread: LoopThread
    _inner: Any

    def __enter__(self) -> Self:
        self._thread.enter(self._inner)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.leave(self._inner, error)


class blocking(Generic[P, T]):  # noqa: N801 (read as a decorator)
    """A method that calls an asynchronous one, and waits for what it returns; `before` in its own thread."""

    def __init__(
        self,
        method: Callable[Concatenate[Any, P], Awaitable[T]],
        *,
        before: Callable[[], object] | None = None,
    ) -> None:
        self._method = method
        self._before = before
        self.__doc__ = method.__doc__
        self.__wrapped__ = method

    def __get__(self, instance: Twin | None, owner: type[object]) -> Callable[P, T]:
        # Of the class itself it is only looked at, for its documentation.
        method, before = self._method, self._before

        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            assert instance is not None, "it was found in an object"
            if before is not None:
                before()
            return instance._thread.call(partial(method, instance._inner), *args, **kwargs)

        return call


def in_loop(method: Callable[Concatenate[Any, P], T]) -> blocking[P, T]:
    """A method that calls one of the loop's objects which does not wait."""

    @wraps(method)
    async def run(inner: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(inner, *args, **kwargs)

    return blocking(run)


class iterating(Generic[P, T]):  # noqa: N801 (read as a decorator)
    """A method that calls an asynchronous generator; closing its own generator closes that."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__
        self.__wrapped__ = method

    def __get__(
        self, instance: Twin | None, owner: type[object]
    ) -> Callable[P, Generator[T, None, None]]:
        method = self._method

        @wraps(method)
        def iterate(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
            assert instance is not None, "it was found in an object"
            items = method(instance._inner, *args, **kwargs)
            thread = instance._thread

            async def following() -> tuple[T] | None:
                try:
                    return (await anext(items),)
                except StopAsyncIteration:
                    return None

            try:
                while (found := thread.call(following)) is not None:
                    yield found[0]
            finally:
                if isinstance(items, AsyncGenerator):
                    with suppress(RuntimeError):
                        thread.call(items.aclose)

        return iterate
