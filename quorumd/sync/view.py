"""`KeyValueView` and its transactions for code without asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from quorumd.client import transaction as asynchronous_transaction
from quorumd.client import view as asynchronous
from quorumd.client.errors import Conflict, QuorumUnavailable
from quorumd.client.transaction import RETRY_DEFAULT, Attempts, Retry, Updated, result_of
from quorumd.security.errors import CertificateProblem
from quorumd.sync.client import QuorumClient
from quorumd.sync.loop_thread import EnteredInLoop, LoopThread, blocking, in_loop

T = TypeVar("T")


class Transaction:
    """As quorumd.Transaction."""

    def __init__(self, thread: LoopThread, inner: asynchronous_transaction.Transaction) -> None:
        self._thread = thread
        self._inner = inner

    get = in_loop(asynchronous_transaction.Transaction.get)
    put = in_loop(asynchronous_transaction.Transaction.put)
    delete = in_loop(asynchronous_transaction.Transaction.delete)

    def update(self, key: bytes, function: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Sets the key to what `function` makes of its value, and returns that; None deletes it."""
        value = result_of(function, self.get(key))
        if value is None:
            self.delete(key)
        else:
            self.put(key, value)
        return value

    @property
    def since(self) -> int:
        """Exclusive: it reads the map of all records below."""
        return self._inner.since

    @property
    def offset(self) -> int | None:
        """Offset of its last record; None before it is committed, or if nothing was read or changed in it."""
        return self._inner.offset


class KeyValueView(EnteredInLoop):
    """A key-value map of the committed log, kept up to date inside `with`: as quorumd.KeyValueView."""

    _inner: asynchronous.KeyValueView

    def __init__(self, client: QuorumClient, *, prefix: bytes = b"") -> None:
        self._thread, inner_client = client.twin
        self._timeout_ms = client.timeout_ms
        self._inner = asynchronous.KeyValueView(inner_client, prefix=prefix)

    @property
    def offset(self) -> int:
        """Exclusive: all committed records below it are applied."""
        return self._inner.offset

    @property
    def problem(self) -> QuorumUnavailable | CertificateProblem | None:
        """The reason why the view is not updated at the moment; None while it is."""
        return self._inner.problem

    def __len__(self) -> int:
        return len(self._inner)

    get = in_loop(asynchronous.KeyValueView.get)
    items = in_loop(asynchronous.KeyValueView.items)
    wait_for = blocking(asynchronous.KeyValueView.wait_for)

    @contextmanager
    def transaction(self, *, timeout_ms: int | None = None) -> Iterator[Transaction]:
        """Reads and changes of keys that take effect together, as quorumd.KeyValueView.transaction."""
        context = self._inner.transaction(timeout_ms=timeout_ms)
        inner = self._thread.enter(context)
        try:
            yield Transaction(self._thread, inner)
        except BaseException as error:
            self._thread.leave(context, error)
            raise
        self._thread.leave(context, None)

    def transact(self, function: Callable[[Transaction], T], *, retry: Retry = RETRY_DEFAULT) -> T:
        """As quorumd.KeyValueView.transact; `function` is called in this thread."""
        attempts = Attempts(retry, self._timeout_ms)
        while True:
            try:
                with self.transaction(timeout_ms=attempts.remaining_ms()) as transaction:
                    return result_of(function, transaction)
            except Conflict as conflict:
                self._thread.call(attempts.wait, self._inner, conflict)

    def update(
        self,
        key: bytes,
        function: Callable[[bytes | None], bytes | None],
        *,
        retry: Retry = RETRY_DEFAULT,
    ) -> Updated:
        """As quorumd.KeyValueView.update; `function` is called in this thread."""

        def change(transaction: Transaction) -> tuple[Transaction, bytes | None]:
            return transaction, transaction.update(key, function)

        transaction, value = self.transact(change, retry=retry)
        assert transaction.offset is not None, "it has changed a key"
        return Updated(value, transaction.offset)
