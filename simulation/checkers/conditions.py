"""Conditional appends are strictly serializable.

One that is in the log saw no key change; one that was refused saw one that had, and is not in the log.

The log is the order in which appends took effect; that it agrees with the clock is judged in
`simulation.checkers.linearizable`. A refusal is a read: of a record that is committed when the response
leaves, and stays in the way of the condition for ever. Source: docs/protocol.md, "Append if unchanged".
"""

from __future__ import annotations

from simulation.history.appends import Append
from simulation.history.facts import Facts
from simulation.violation import Violation

NAME = "conditional appends are strictly serializable"


def check_refusal(facts: Facts, append: Append) -> None:
    """A client has just got the refusal. Raise Violation unless its condition is not met for good."""
    wanted, refusal = append.wanted, append.refusal
    assert wanted is not None, "it has a condition"
    assert refusal is not None, "it was refused"
    end_offset = facts.committed_end_offset
    if refusal.key is None:
        if not wanted.since < refusal.offset <= end_offset:
            raise _broken(append, f"has to read again from there; {end_offset} is the end")
        return
    if not wanted.since <= refusal.offset < end_offset:
        raise _broken(
            append, f"is refused for a record there; what is committed ends at {end_offset}"
        )
    at = facts.committed[len(facts.committed_below(refusal.offset))]
    records = facts.records.get(at.identity, [])
    index = refusal.offset - at.base_offset
    found = records[index].key if index < len(records) else None
    if found != refusal.key or found not in wanted.keys:
        raise _broken(
            append, f"is refused for {refusal.key!r}; the key of the record there is {found!r}"
        )


def check_conditions(facts: Facts) -> None:
    """At the end. Raise Violation unless every condition was met where its batch is, and only there."""
    conditional = {append.identity: append for append in facts.appends if append.wanted is not None}
    newest: dict[bytes, int] = {}
    for batch in facts.committed:
        append = conditional.get(batch.identity)
        if append is not None and append.wanted is not None:
            if append.refusal is not None:
                raise _broken(append, f"was refused, and is in the log at {batch}")
            for key in append.wanted.keys:
                if newest.get(key, -1) >= append.wanted.since:
                    what = f"is in the log at {batch}; {key!r} was written at {newest[key]}"
                    raise _broken(append, what)
        for index, record in enumerate(facts.records.get(batch.identity, ())):
            if record.key is not None:
                newest[record.key] = batch.base_offset + index


def _broken(append: Append, what: str) -> Violation:
    return Violation(
        NAME, f"{append.client}, {append.identity}, {append.wanted}, {append.refusal}: it {what}"
    )
