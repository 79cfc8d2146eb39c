"""meta.properties, quorum-state.json and leader-epoch-checkpoint: contents, damage, atomicity."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.config import java_properties
from quorumd.raft.types import uuid_to_text
from quorumd.storage.epoch_checkpoint import (
    EpochStart,
    load_epochs,
    parse_epochs,
    render_epochs,
    save_epochs,
)
from quorumd.storage.errors import DamagedFile, DiskFull, NotFormatted
from quorumd.storage.meta_properties import (
    LogOwner,
    MetaProperties,
    load_meta_properties,
    random_storage_id,
    save_meta_properties,
)
from quorumd.storage.quorum_state import (
    QuorumState,
    load_quorum_state,
    parse_quorum_state,
    render_quorum_state,
    save_quorum_state,
)
from tests.storage.faulty_filesystem import FaultyFileSystem, PowerLoss, Survival
from tests.storage.helpers import DIRECTORY, empty_disk

ROOT = DIRECTORY.parent
META = ROOT / "meta.properties"
ONE = UUID("3a2b1c0d-4e5f-4a6b-8c7d-9e8f7a6b5c4d")
TWO = UUID("11111111-1111-4111-8111-111111111111")
UUIDS = st.uuids(version=4)


def load(text: str) -> MetaProperties:
    return load_meta_properties(FaultyFileSystem({META: text.encode()}), ROOT)


# --- meta.properties


def test_meta_properties_come_back_as_they_were_saved() -> None:
    fs = empty_disk()
    for meta in (
        MetaProperties(node_id=3, storage_id=ONE),
        MetaProperties(
            node_id=0,
            storage_id=TWO,
            cluster_id="a b:c=d\\é",
            log_owner=LogOwner.KAFKA,
            bootstrap=True,
            others=(("strange.key", "kept"),),
        ),
        MetaProperties(
            node_id=(1 << 31) - 1,
            storage_id=ONE,
            initial_voters="1@a:9093:x",
            removed=True,
            has_started=True,
        ),
    ):
        save_meta_properties(fs, ROOT, meta)
        assert load_meta_properties(fs, ROOT) == meta


def test_a_kafka_file_is_read() -> None:
    meta = load(
        "#\n#Thu Oct 02 12:00:00 UTC 2025\ncluster.id=4L6g3nShT-eMCtK--X86sw\nversion=1\n"
        f"directory.id={uuid_to_text(ONE)}\nnode.id=7\n"
    )
    assert meta == MetaProperties(node_id=7, storage_id=ONE, cluster_id="4L6g3nShT-eMCtK--X86sw")


def test_the_file_holds_the_storage_id_under_both_names() -> None:
    fs = empty_disk()
    save_meta_properties(fs, ROOT, MetaProperties(node_id=1, storage_id=ONE, cluster_id="x"))
    assert fs.contents(META).decode() == (
        "# Written by quorumd; says whose directory this is.\nversion=1\nnode.id=1\ncluster.id=x\n"
        "storage.id=OiscDU5fSmuMfZ6PemtcTQ\ndirectory.id=OiscDU5fSmuMfZ6PemtcTQ\n"
        "log.owner=quorumd\nbootstrap=false\n"
    )


def test_a_missing_storage_id_is_generated_and_saved() -> None:
    fs = FaultyFileSystem({META: b"broker.id=4\ncluster.id=c\n"})
    meta = load_meta_properties(fs, ROOT, new_storage_id=lambda: TWO)
    assert meta == MetaProperties(node_id=4, storage_id=TWO, cluster_id="c")
    after = fs.crash(Survival.LOSE, Random(0))
    assert load_meta_properties(after, ROOT) == meta


@pytest.mark.parametrize("cut_at", [b"storage.id", b"directory.id=OiscDU5fSmuMfZ6PemtcTQ"])
def test_a_file_that_was_cut_off_makes_no_other_replica_of_a_node_that_has_run(
    cut_at: bytes,
) -> None:
    fs = empty_disk()
    save_meta_properties(fs, ROOT, MetaProperties(node_id=1, storage_id=ONE, has_started=True))
    text = (
        fs.contents(META).partition(cut_at)[0].replace(b"storage.id=OiscDU5fSmuMfZ6PemtcTQ\n", b"")
    )
    state = ROOT / "__cluster_metadata-0" / "quorum-state.json"
    ran = FaultyFileSystem({META: text, state: b"{}"})
    with pytest.raises(DamagedFile, match=r"storage\.id and directory\.id are missing"):
        load_meta_properties(ran, ROOT)
    assert ran.contents(META) == text, "nothing is changed"
    assert load_meta_properties(FaultyFileSystem({META: text}), ROOT, new_storage_id=lambda: TWO)


def test_random_storage_ids_are_usable_on_a_command_line() -> None:
    for _ in range(200):
        assert not uuid_to_text(random_storage_id()).startswith("-")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("version=2\nnode.id=1\n", "version is '2'"),
        ("version=1\n", "node.id is missing"),
        ("node.id=1\nbroker.id=2\n", "differ"),
        ("node.id=-1\n", "node.id is '-1'"),
        ("node.id=one\n", "node.id is 'one'"),
        ("node.id=99999999999\n", "node.id is"),
        ("node.id=2147483648\n", "node.id is '2147483648'"),
        ("node.id=1\nstorage.id=short\n", "not a uuid"),
        ("node.id=1\nstorage.id=AAAAAAAAAAAAAAAAAAAAAA\n", "zero uuid"),
        (
            f"node.id=1\nstorage.id={uuid_to_text(ONE)}\ndirectory.id={uuid_to_text(TWO)}\n",
            "differ",
        ),
        ("node.id=1\nlog.owner=me\n", "log.owner is 'me'"),
        ("node.id=1\nbootstrap=yes\n", "bootstrap is 'yes'"),
        ("node.id=\\u12\n", "is no character"),
    ],
)
def test_meta_properties_that_make_no_sense_are_refused(text: str, what: str) -> None:
    with pytest.raises(DamagedFile, match=what) as caught:
        load(text)
    assert "restore it from a backup" in str(caught.value)


def test_no_meta_properties_means_not_formatted() -> None:
    with pytest.raises(NotFormatted, match="quorumd format"):
        load_meta_properties(empty_disk(), ROOT)


def test_java_properties_are_read_as_java_reads_them() -> None:
    text = (
        "! comment\n  # another\na=1\nb : 2\nc 3\n  d\t=\t4\ne=five \\\n    more\nf\\=g=6\n"
        "h=\\u00e9\\t\\\\\nempty\nk=a=b\r\nz=last"
    )
    assert java_properties.parse(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "4",
        "e": "five more",
        "f=g": "6",
        "h": "é\t\\",
        "empty": "",
        "k": "a=b",
        "z": "last",
    }


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=12), max_size=4))
def test_properties_survive_a_round_trip(pairs: dict[str, str]) -> None:
    text = java_properties.render(pairs)
    assert text.isascii()
    # Java's text is UTF-16: a character beyond 16 bits comes back as its two halves.
    read = {_joined(key): _joined(value) for key, value in java_properties.parse(text).items()}
    assert read == pairs


def _joined(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


# --- quorum state

FULL = QuorumState(
    cluster_id="c",
    leader_id=2,
    leader_uuid=TWO,
    leader_epoch=5,
    voted_id=0,
    voted_uuid=ONE,
    applied_offset=77,
)


def test_the_quorum_state_file_is_that_of_kip_856() -> None:
    assert render_quorum_state(FULL) == (
        b'{"clusterId":"c","leaderId":2,"leaderUuid":"EREREREREQCBERERERERREQ",'
        b'"leaderEpoch":5,"votedId":0,"votedUuid":"OiscDU5fSmuMfZ6PemtcTQ","appliedOffset":77,'
        b'"data_version":1}\n'
    ).replace(b"EREREREREQCBERERERERREQ", uuid_to_text(TWO).encode())
    assert render_quorum_state(QuorumState()) == (
        b'{"clusterId":"","leaderId":-1,"leaderUuid":"AAAAAAAAAAAAAAAAAAAAAA","leaderEpoch":0,'
        b'"votedId":-1,"votedUuid":"AAAAAAAAAAAAAAAAAAAAAA","appliedOffset":0,"data_version":1}\n'
    )


@given(
    st.builds(
        QuorumState,
        cluster_id=st.none() | st.text(min_size=1, max_size=9),
        leader_id=st.none() | st.integers(0, 2**31 - 1),
        leader_uuid=st.none() | UUIDS,
        leader_epoch=st.integers(0, 2**31 - 1),
        voted_id=st.none() | st.integers(0, 2**31 - 1),
        voted_uuid=st.none() | UUIDS,
        applied_offset=st.integers(0, 2**63 - 1),
    )
)
def test_a_quorum_state_survives_a_round_trip(state: QuorumState) -> None:
    assert parse_quorum_state(render_quorum_state(state)) == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (
            '{"clusterId":"","leaderId":1,"leaderEpoch":5,"votedId":-1,"appliedOffset":9,'
            '"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0}',
            QuorumState(leader_id=1, leader_epoch=5, applied_offset=9),
        ),
        (
            '{"leaderId":-1,"leaderEpoch":6,"votedId":2,'
            '"votedDirectoryId":"OiscDU5fSmuMfZ6PemtcTQ","data_version":1}\nignored',
            QuorumState(leader_epoch=6, voted_id=2, voted_uuid=ONE),
        ),
    ],
)
def test_kafkas_own_file_is_read_until_ours_is_there(text: str, state: QuorumState) -> None:
    fs = empty_disk()
    fs.put(DIRECTORY / "quorum-state", text.encode())
    assert load_quorum_state(fs, DIRECTORY) == state
    save_quorum_state(fs, DIRECTORY, FULL)
    assert load_quorum_state(fs, DIRECTORY) == FULL


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe",
        b"[]",
        b"3",
        b"[" * 5000,
        render_quorum_state(FULL).replace(b'"data_version":1', b'"data_version":2'),
        b'{"data_version":"1"}',
        render_quorum_state(FULL)[:-10],
        render_quorum_state(FULL).replace(b'"votedId":0', b'"votedId":-2'),
        render_quorum_state(FULL).replace(b'"votedId":0', b'"votedId":true'),
        render_quorum_state(FULL).replace(b'"votedId":0,', b""),
        render_quorum_state(FULL).replace(b'"leaderEpoch":5', b'"leaderEpoch":-1'),
        render_quorum_state(FULL).replace(b'"leaderEpoch":5', b'"leaderEpoch":2147483648'),
        render_quorum_state(FULL).replace(b'"leaderId":2', b'"leaderId":2147483648'),
        render_quorum_state(FULL).replace(b'"votedId":0', b'"votedId":2147483648'),
        render_quorum_state(FULL).replace(b'"leaderUuid":"', b'"leaderUuid":"x'),
        render_quorum_state(FULL).replace(b'"clusterId":"c"', b'"clusterId":7'),
    ],
)
def test_an_unreadable_quorum_state_is_refused_and_never_taken_for_empty(text: bytes) -> None:
    fs = empty_disk()
    path = DIRECTORY / "quorum-state.json"
    fs.put(path, text)
    with pytest.raises(DamagedFile, match="could vote twice") as caught:
        load_quorum_state(fs, DIRECTORY)
    assert caught.value.path == path
    assert caught.value.exit_code == 3


def test_no_quorum_state_is_a_first_start() -> None:
    assert load_quorum_state(empty_disk(), DIRECTORY) is None


# --- atomicity


SAVES: dict[
    str, tuple[Callable[[FaultyFileSystem, int], None], Callable[[FaultyFileSystem], int]]
] = {
    "quorum-state": (
        lambda fs, n: save_quorum_state(fs, DIRECTORY, QuorumState(leader_epoch=n)),
        lambda fs: (load_quorum_state(fs, DIRECTORY) or QuorumState()).leader_epoch,
    ),
    "meta": (
        lambda fs, n: save_meta_properties(fs, ROOT, MetaProperties(node_id=n, storage_id=ONE)),
        lambda fs: load_meta_properties(fs, ROOT).node_id,
    ),
}


@pytest.mark.parametrize("name", SAVES)
@pytest.mark.parametrize("survival", Survival)
def test_a_crash_during_a_replacement_leaves_the_old_file_or_the_new_one(
    name: str, survival: Survival
) -> None:
    save, load_number = SAVES[name]
    for calls in range(1, 9):
        for seed in range(5):
            fs = empty_disk()
            save(fs, 1)
            fs.crash_at = fs.calls + calls
            is_saved = False
            try:
                save(fs, 2)
                is_saved = True
            except PowerLoss:
                pass
            found = load_number(fs.crash(survival, Random(seed)))
            assert found == 2 if is_saved else found in (1, 2)


@pytest.mark.parametrize("name", SAVES)
def test_what_a_killed_process_has_left_of_a_longer_file_is_no_part_of_the_new_one(
    name: str,
) -> None:
    save, load_number = SAVES[name]
    fs, alone = empty_disk(), empty_disk()
    temporary = {"meta": META, "quorum-state": DIRECTORY / "quorum-state.json"}[name]
    fs.put(temporary.with_name(f"{temporary.name}.tmp"), b"node.id=7\n" * 100)
    for each in (fs, alone):
        save(each, 1)
    assert fs.contents(temporary) == alone.contents(temporary)
    assert load_number(fs) == 1


@pytest.mark.parametrize("name", SAVES)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(name: str) -> None:
    save, load_number = SAVES[name]
    fs = empty_disk()
    save(fs, 1)
    names = {path: fs.listdir(path) for path in (ROOT, DIRECTORY)}
    fs.capacity_bytes = 0
    with pytest.raises(DiskFull):
        save(fs, 2)
    assert load_number(fs) == 1
    assert {path: fs.listdir(path) for path in (ROOT, DIRECTORY)} == names


# --- leader-epoch-checkpoint


def test_the_epoch_checkpoint_is_kafkas() -> None:
    assert render_epochs([EpochStart(1, 0), EpochStart(3, 42)]) == b"0\n2\n1 0\n3 42\n"
    assert render_epochs([]) == b"0\n0\n"
    assert parse_epochs(b"0\n2\n1 0\n3 42\n") == [(1, 0), (3, 42)]
    assert parse_epochs(b"0\n2\n1 0\n3 42") == [(1, 0), (3, 42)]
    assert parse_epochs(b"") == []


@pytest.mark.parametrize(
    "text",
    [
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\n1\n",
        b"0\n1\nx 1\n",
        b"0\n2\n2 0\n1 5\n",
        b"0\n2\n1 5\n2 5\n",
        b"0\n1\n1 0\n2 5\n",
    ],
)
def test_a_broken_epoch_checkpoint_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_epochs(text)


def test_an_epoch_checkpoint_on_a_disk_that_fails_is_not_taken_for_none() -> None:
    fs = empty_disk()
    save_epochs(fs, DIRECTORY, [EpochStart(1, 0)])
    assert load_epochs(fs, DIRECTORY) == [(1, 0)]
    fs.errors["pread"] = EIO
    with pytest.raises(OSError, match="told to fail"):
        load_epochs(fs, DIRECTORY)


def test_paths_are_where_the_layout_says() -> None:
    assert Path("/data/__cluster_metadata-0") == DIRECTORY
