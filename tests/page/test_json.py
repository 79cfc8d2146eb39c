"""The data of the page, without a browser: the past, the leader's report, the rows, and the texts."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from quorumd.raft.types import ReplicaKey
from quorumd.server.model.metrics import Metrics
from quorumd.server.page import leader as leader_module
from quorumd.server.page.findings import (
    EPOCHS_MANY,
    Level,
    PageFacts,
    WaitingChange,
    duration,
    findings,
    size,
)
from quorumd.server.page.history import SAMPLES_MAX, FigureHistory
from quorumd.server.page.leader import LeaderReport, LeaderView
from quorumd.server.page.page import QuorumPage
from quorumd.server.page.replicas import Health, ReplicaRow, rows_of
from quorumd.server.page.source import PageSource
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponseCommittedVoter,
    DescribeQuorumResponsePendingChange,
    DescribeQuorumResponseSnapshotCopy,
    DescribeQuorumResponseTopic,
)
from tests.page.sources import FakeLeader, described, replica, source_for
from tests.support.cluster import FixedView, voter
from tests.support.loop_turns import LoopTurns
from tests.support.serving import run

FOLLOWER = FixedView(is_leader=False, role="follower", local=voter(1).key)
TIMEOUT_MS = 2000


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


# -- the past


def test_commits_are_the_way_of_the_high_watermark() -> None:
    view = FixedView(high_watermark=-1)
    history = FigureHistory(source_for(view, metrics=Metrics()))
    for at_s, view.high_watermark in ((1.0, -1), (2.0, 500), (3.0, 510), (5.0, 540), (6.0, 540)):
        history.take(at_s)
    # What was known to be committed before this node knew anything is no rate.
    assert [each.commits_per_s for each in history.newest()] == [None, None, 10, 15, 0]


def test_what_a_new_leader_knows_less_is_no_negative_rate() -> None:
    view = FixedView(high_watermark=500)
    history = FigureHistory(source_for(view, metrics=Metrics()))
    for at_s, view.high_watermark in ((1.0, 500), (2.0, 490), (3.0, 495)):
        history.take(at_s)
    assert [each.commits_per_s for each in history.newest()] == [None, 0, 5]


def test_each_second_has_its_own_latency() -> None:
    metrics = Metrics()
    metrics.observe_commit(7.0)
    history = FigureHistory(source_for(FixedView(), metrics=metrics))
    for _ in range(99):
        metrics.observe_commit(0.002)
    metrics.observe_commit(0.2)
    metrics.observe_fsync(0.001)
    history.take(1.0)
    history.take(2.0)
    first, second = history.newest()
    assert first.commit_ms == pytest.approx(3.98)
    assert first.commit_p99_ms is not None
    assert 1 < first.commit_p99_ms <= 2.5
    assert first.sync_ms == 1
    assert (second.commit_ms, second.commit_p99_ms, second.sync_ms) == (None, None, None)


def test_the_slowest_hundredth_is_seen() -> None:
    metrics = Metrics()
    history = FigureHistory(source_for(FixedView(), metrics=metrics))
    for seconds in (*[0.002] * 95, *[0.2] * 5, 60.0):
        metrics.observe_commit(seconds)
    history.take(1.0)
    found = history.newest()[0].commit_p99_ms
    assert found is not None
    assert 100 < found <= 250


def test_the_past_is_bounded_and_numbered() -> None:
    history = FigureHistory(source_for(FixedView(), metrics=Metrics()))
    for second in range(SAMPLES_MAX + 50):
        history.take(float(second))
    samples = history.newest()
    assert [each.number for each in samples] == list(range(51, SAMPLES_MAX + 51))
    assert [each.number for each in history.newest(3)] == [348, 349, 350]


def test_epochs_count_from_the_first_leader_on() -> None:
    view = FixedView(leader_id=None, leader_epoch=1)
    history = FigureHistory(source_for(view, metrics=Metrics()))
    for view.leader_id, view.leader_epoch in ((None, 1), (None, 4), (2, 5), (None, 6), (3, 7)):
        history.take(1.0)
    assert history.epochs_begun() == 2


# -- the leader's word


def look(source: PageSource, clock: Clock | None = None) -> LeaderReport:
    return run(LeaderView(source, clock or Clock()).report())


def test_a_leader_asks_nobody_and_hides_nothing() -> None:
    leader = FakeLeader()
    view = FixedView(target_voters=(1, 2, 4))
    report = look(source_for(view, leader))
    assert report.partition is not None
    assert (report.partition.leader_id, report.partition.target_voters) == (2, (1, 2, 4))
    assert leader.asked == []


def test_however_many_look_the_leader_is_asked_once_in_a_while() -> None:
    async def work() -> None:
        leader, clock = FakeLeader(), Clock()
        view = LeaderView(source_for(FOLLOWER, leader), clock)
        looking = [asyncio.ensure_future(view.report()) for _ in range(5)]
        await asyncio.sleep(0)
        leader.answer(described(replica(2)))
        assert {(await each).partition is not None for each in looking} == {True}
        assert leader.asked == [2]
        await view.report()
        assert leader.asked == [2]
        clock.now_s += leader_module.ASK_AGAIN_S
        leader.says = described(replica(2))
        await view.report()
        assert leader.asked == [2, 2]

    run(work())


def test_a_leader_that_does_not_answer_holds_nobody_up_and_its_last_word_stays_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_module, "RESPONSE_WAIT_S", 0.001)

    async def work() -> None:
        leader, clock = FakeLeader(described(replica(2))), Clock()
        view = LeaderView(source_for(FOLLOWER, leader), clock)
        await view.report()
        leader.says = None
        clock.now_s += 3
        report = await view.report()
        assert (report.partition is not None, report.age_s, report.problem) == (True, 3, "")
        leader.answer("it did not answer in 2000 ms")
        report = await view.report()
        assert report.problem == "it did not answer in 2000 ms"
        clock.now_s += 1
        assert (await view.report()).partition is None

    run(work())


def test_the_word_of_an_earlier_leader_does_not_count() -> None:
    async def work() -> None:
        seen = replace(FOLLOWER)
        view = LeaderView(source_for(seen, FakeLeader(described(replica(2)))), Clock())
        assert (await view.report()).partition is not None
        seen.leader_epoch = 8
        assert (await view.report()).partition is None
        seen.leader_epoch, seen.leader_id = 7, None
        assert (await view.report()) == LeaderReport(None, (), 0.0, "")

    run(work())


def test_a_new_leader_is_asked_at_once_though_the_last_one_has_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_module, "RESPONSE_WAIT_S", 0.001)

    async def work() -> None:
        leader, seen = FakeLeader(), replace(FOLLOWER)
        view = LeaderView(source_for(seen, leader), Clock())
        assert (await view.report()).partition is None
        seen.leader_id, seen.leader_epoch = 3, 8
        looking = asyncio.ensure_future(view.report())
        await asyncio.sleep(0)
        leader.waiting.reverse()
        leader.answer(described(replica(3), leader_id=3, leader_epoch=8))
        assert (await looking).partition is not None
        leader.answer("the connection was lost")
        report = await view.report()
        assert (report.partition is not None, report.problem) == (True, "")

    run(work())


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b"\x00\x01", "the leader's response is invalid"),
        (DescribeQuorumResponse(error_message=""), "0 partitions"),
        (described(error_code=6, error_message="ask node 3"), "ask node 3"),
        (described(error_code=-1, error_message=None), "error -1"),
        ("the connection was lost", "the connection was lost"),
    ],
)
def test_what_is_no_answer_is_said_in_words(
    says: DescribeQuorumResponse | bytes | str, words: str
) -> None:
    report = look(source_for(FOLLOWER, FakeLeader(says)))
    assert report.partition is None
    assert words in report.problem


def test_a_topic_without_partitions_in_the_answer_is_passed_over() -> None:
    answer = described(replica(2))
    empty = DescribeQuorumResponseTopic(topic_name="other", partitions=())
    report = look(source_for(FOLLOWER, FakeLeader(replace(answer, topics=(empty, *answer.topics)))))
    assert report.partition == answer.topics[0].partitions[0]


def test_the_time_is_of_the_clock_of_the_times_that_are_shown() -> None:
    found = run(QuorumPage(source_for(FixedView(now_ms=1_234_567_890_000))).now())
    assert found["at_ms"] == 1_234_567_890_000


def test_of_many_that_are_asked_for_together_one_is_made_a_turn() -> None:
    async def work() -> None:
        turns, made = LoopTurns(), []

        def problems() -> list[str]:
            made.append(turns.count)
            return []

        page = QuorumPage(replace(source_for(FixedView()), problems=problems))
        await asyncio.gather(*(page.now() for _ in range(20)))
        turns.end()
        assert len(made) == len(set(made)) == 20

    run(work())


# -- the rows


def rows(
    answer: DescribeQuorumResponse | None,
    view: FixedView = FOLLOWER,
    *,
    age_s: float = 0.0,
    unreachable: frozenset[int] = frozenset(),
    is_new_leader: bool = False,
) -> list[ReplicaRow]:
    report = LeaderReport(None, (), 0.0, "")
    if answer is not None:
        report = LeaderReport(answer.topics[0].partitions[0], answer.nodes, age_s, "")
    source = source_for(view, unreachable=lambda: unreachable, fetch_timeout_ms=TIMEOUT_MS)
    return rows_of(source, report, is_new_leader)


def test_rows_say_who_leads_who_keeps_up_and_who_does_not() -> None:
    answer = described(
        replica(1, end=97, fetched_ms=30, caught_up_ms=40),
        replica(2),
        replica(3, end=20, fetched_ms=9000, caught_up_ms=9000),
        observers=(replica(4, end=50, fetched_ms=10, caught_up_ms=60_000),),
    )
    found = [(row.key.id, row.role, row.lag, row.contact_ms, row.health) for row in rows(answer)]
    assert found == [
        (1, "voter", 3, 30, Health.GOOD),
        (2, "leader", 0, 0, Health.GOOD),
        (3, "voter", 80, 9000, Health.SILENT),
        (4, "observer", 50, 10, Health.BEHIND),
    ]
    assert [row.is_local for row in rows(answer)] == [True, False, False, False]


def test_an_old_answer_makes_contacts_older_and_nobody_silent_but_the_leader() -> None:
    found = rows(described(replica(1, fetched_ms=30), replica(2)), age_s=5.0)
    assert [(row.contact_ms, row.health) for row in found] == [
        (5030, Health.GOOD),
        (5000, Health.SILENT),
    ]


def test_who_is_silent_and_refuses_connections_is_gone() -> None:
    answer = described(replica(1, fetched_ms=10), replica(2), replica(3, fetched_ms=5000))
    found = rows(answer, unreachable=frozenset({1, 3}))
    assert [row.health for row in found] == [Health.GOOD, Health.GOOD, Health.GONE]


def test_of_a_new_leader_nobody_needs_to_have_fetched() -> None:
    answer = described(replica(1, end=-1, fetched_ms=-1, caught_up_ms=-1), replica(2))
    assert rows(answer, is_new_leader=True)[0].health is Health.UNKNOWN
    old = rows(answer)[0]
    assert (old.health, old.end_offset, old.lag, old.contact_ms) == (
        Health.SILENT,
        None,
        None,
        None,
    )


def test_a_lost_disk_under_the_leaders_id_does_not_lead() -> None:
    lost = UUID(int=5)
    answer = described(replica(2, end=3, fetched_ms=-1, uuid=lost), replica(2), replica(3))
    roles = {(row.key.id, row.key.uuid == lost): row.role for row in rows(answer)}
    assert roles == {(2, True): "voter", (2, False): "leader", (3, False): "voter"}


def test_without_the_leaders_word_the_voters_are_shown_as_this_node_knows_them() -> None:
    found = rows(None, replace(FOLLOWER, leader_id=None), unreachable=frozenset({3}))
    assert [(row.key.id, row.health, row.end_offset) for row in found] == [
        (1, Health.GOOD, 120),
        (2, Health.UNKNOWN, None),
        (3, Health.GONE, None),
    ]
    assert found[1].addresses == ("node2.internal:9093", "node2.example:9092")


def test_a_leader_that_does_not_say_how_the_others_do_is_shown_as_the_leader() -> None:
    assert [row.role for row in rows(None)] == ["voter", "leader", "voter"]


def test_a_copy_of_a_snapshot_is_shown_as_a_share() -> None:
    key = voter(3).key
    assert key.uuid is not None
    copy = DescribeQuorumResponseSnapshotCopy(
        replica_id=3, replica_directory_id=key.uuid, end_offset=9, position=25, size_bytes=100
    )
    found = rows(described(replica(2), replica(3), snapshot_copies=(copy,)))
    assert [row.copied for row in found] == [None, 0.25]


# -- the words

GOOD = PageFacts(
    problems=(),
    warnings=(),
    rows=tuple(rows(described(replica(1), replica(2), replica(3)))),
    has_report=True,
    is_report_due=True,
    report_problem="",
    changes=(),
    is_settled=True,
    epochs_begun=0,
    snapshot_problem="",
    disk_free_bytes=None,
    segment_bytes=100,
    storage_dir="/data",
)


def said(**changes: object) -> list[str]:
    facts = replace(GOOD, **changes)  # type: ignore[arg-type]  # tests name fields of any type
    return [f"{found.level} {found.text}" for found in findings(facts)]


def test_of_a_quorum_that_is_fine_nothing_is_said() -> None:
    assert said() == []


def test_a_lost_minority_is_a_warning_with_the_arithmetic() -> None:
    answer = described(replica(1, fetched_ms=72_000), replica(2), replica(3))
    assert said(rows=rows(answer)) == [
        "warning Voter 1 has not fetched for 1 min 12 s",
        "warning If one more voter fails, the quorum stops: 2 of 3 are there, 2 are needed",
    ]


def test_a_lost_majority_is_an_error_and_comes_first() -> None:
    answer = described(replica(1, fetched_ms=-1), replica(2), replica(3, fetched_ms=4000))
    texts = said(rows=rows(answer, unreachable=frozenset({1})))
    assert texts == [
        "error Nothing can be committed: 1 of 3 voters fetch, 2 are needed",
        "warning Voter 1 has not fetched from this leader, and connections to its process are refused",
        "warning Voter 3 has not fetched for 4 s",
    ]


def test_five_voters_may_lose_one_without_that_warning() -> None:
    answer = described(*map(replica, range(1, 5)), replica(5, fetched_ms=9000))
    assert said(rows=rows(answer)) == ["warning Voter 5 has not fetched for 9 s"]


def test_two_disks_under_one_id_are_told_apart() -> None:
    key = ReplicaKey(3, UUID(int=9))
    answer = described(
        replica(2),
        replica(3, fetched_ms=9000, uuid=key.uuid),
        observers=(replica(3),),
    )
    assert f"warning Voter {key} has not fetched for 9 s" in said(rows=rows(answer))


def test_without_a_leader_the_voters_that_do_not_run_are_named() -> None:
    unheard = rows(None, replace(FOLLOWER, leader_id=None), unreachable=frozenset({2, 3}))
    texts = said(
        rows=unheard, has_report=False, is_report_due=False, problems=["no leader is known"]
    )
    assert texts == [
        "error This node: no leader is known",
        "error Nothing can be committed: of 3 voters at most 1 runs, 2 are needed",
        "warning Voter 2, Voter 3: connections are refused, so the process does not run",
    ]


def test_without_a_leader_a_majority_that_may_run_is_no_lost_one() -> None:
    unheard = rows(None, replace(FOLLOWER, leader_id=None), unreachable=frozenset({3}))
    assert said(rows=unheard, has_report=False, is_report_due=False) == [
        "warning Voter 3: connections are refused, so the process does not run",
    ]


def test_a_node_that_knows_no_voters_yet_does_not_do_arithmetic() -> None:
    assert said(rows=(), has_report=False, is_report_due=False) == []


def test_a_leader_that_does_not_say_is_a_warning_with_the_reason() -> None:
    (text,) = said(rows=rows(None), has_report=False, report_problem="it timed out")
    assert text.startswith("warning The leader was asked")
    assert "it timed out" in text


def test_a_change_under_way_names_who_blocks_and_since_when() -> None:
    changes = [
        WaitingChange("add", voter(4).key, 12_000, False, "replica 4 is 300 records behind"),
        WaitingChange("reassign", None, 61_000, True, "replica 5 does not fetch"),
        WaitingChange("x-new", None, 1000, False, ""),
    ]
    key = voter(4).key
    assert said(changes=changes) == [
        f"note Adding voter {key} has waited for 12 s: replica 4 is 300 records behind",
        "note The reassignment has waited for at least 1 min 1 s: replica 5 does not fetch",
        "note x-new has waited for 1 s",
    ]


def test_what_will_go_wrong_is_said_before_it_does() -> None:
    assert said(epochs_begun=EPOCHS_MANY - 1, disk_free_bytes=200) == []
    assert [text.split(":")[0] for text in said(epochs_begun=EPOCHS_MANY)] == [
        f"warning {EPOCHS_MANY} epochs began in the last minutes"
    ]
    (disk,) = said(disk_free_bytes=199)
    assert disk == (
        "warning This node: 199 bytes are free on the disk of /data, less than twice log.segment.bytes"
    )
    assert said(snapshot_problem="no room", warnings=["w"], is_settled=False) == [
        "warning This node: w",
        "warning This node can't take a snapshot now: no room",
        "note The newest voter set is not committed yet",
    ]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 s"),
        (59_999, "59 s"),
        (61_000, "1 min 1 s"),
        (7_260_000, "2 h 1 min"),
        (86_399_999, "23 h 59 min"),
        (97_200_000, "1 d 3 h"),
    ],
)
def test_durations_are_for_people(ms: int, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1023, "1023 bytes"),
        (1 << 20, "1 MiB"),
        (1023 << 20, "1023 MiB"),
        (5 << 30, "5 GiB"),
        (3 << 39, "1.5 TiB"),
    ],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size(count) == text


# -- all of it


def test_a_follower_shows_the_report_of_the_leader() -> None:
    change = DescribeQuorumResponsePendingChange(
        kind="reassign", replica_id=-1, waiting_ms=-1, waits_for="replica 5 does not fetch"
    )
    key = voter(1).key
    assert key.uuid is not None
    answer = described(
        replica(1),
        replica(2),
        target_voters=(1, 2, 5),
        pending_changes=(change,),
        committed_voters=(
            DescribeQuorumResponseCommittedVoter(replica_id=1, replica_directory_id=key.uuid),
        ),
    )
    view, clock = replace(FOLLOWER, target_voters=(1, 2, 5)), Clock()
    page = QuorumPage(source_for(view, FakeLeader(answer)), clock)

    async def work() -> None:
        page.open()
        clock.now_s += 42
        found = await page.now()
        await page.close()
        assert found["leader_report"] == {"by": 2, "age_s": 0, "problem": ""}
        voters = found["voters"]
        assert isinstance(voters, dict)
        assert [key["id"] for key in voters["in_force"]] == [1, 2]
        assert [key["id"] for key in voters["committed"]] == [1]
        assert voters["target"] == (1, 2, 5)
        assert found["findings"] == [
            {
                "level": Level.NOTE,
                "text": "The reassignment has waited for at least 42 s: replica 5 does not fetch",
            }
        ]

    run(work())


def test_whether_the_voter_set_is_committed_is_the_leaders_word() -> None:
    key = voter(1).key
    assert key.uuid is not None
    committed = DescribeQuorumResponseCommittedVoter(replica_id=1, replica_directory_id=key.uuid)
    answer = described(replica(1), replica(2), committed_voters=(committed,))
    found = run(QuorumPage(source_for(FOLLOWER, FakeLeader(answer))).now())
    assert found["findings"] == [
        {"level": Level.NOTE, "text": "The newest voter set is not committed yet"}
    ]


def test_the_newest_snapshot_has_a_size_and_an_age(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(b"x" * 77)
    os.utime(path, (1000, 1000))
    view = FixedView(now_ms=1_007_300)
    page = QuorumPage(source_for(view, snapshot_path=lambda: path, storage_dir=tmp_path))
    found = run(page.now())
    snapshot, disk = found["snapshot"], found["disk"]
    assert isinstance(disk, dict)
    assert snapshot == {"size_bytes": 77, "age_s": 7.3}
    assert 0 < disk["free_bytes"] < disk["size_bytes"]
    assert disk["log_bytes"] == 4096


def test_a_snapshot_that_went_and_a_disk_that_says_nothing_are_unknown(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    page = QuorumPage(source_for(FixedView(), snapshot_path=lambda: lost, storage_dir=lost))
    found = run(page.now())
    assert found["snapshot"] == {"size_bytes": None, "age_s": None}
    assert found["disk"] == {"size_bytes": None, "free_bytes": None, "log_bytes": 4096}
