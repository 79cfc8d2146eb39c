"""The consensus rules as a deterministic state machine: events come in, effects come out.

Nothing here touches a socket, a disk, a clock, a thread or a random generator: time is a parameter of
every step and random draws come through a function handed in at construction.

`node` is the way in; `events` and `effects` are what goes in and out, `types`, `control` and `errors` the
values and names in them. `core` is the state that rules share, `core_parts` what one feature needs of it;
`roles` and `transitions` say what a replica can be and become, `role_changes` does it. The rules, by Raft's
names:

* elections: `election_timeout`, `campaign`, `pre_vote`, `vote_requests`, `vote_rules`, `campaign_delays`,
  `quorum_epochs` (BeginQuorumEpoch, EndQuorumEpoch), `resignation`, `leader_discovery`, `peer_connections`,
  `witness`
* leaders: `leadership`, `check_quorum`, `leadership_transfer`, `client_appends`, `control_appends`
* replication: `fetching` (the follower), `fetch_requests` (the leader), `parked_fetches`, `replica_progress`,
  `high_watermark`, `commitment`, `log_view`, `truncation`, `request_failures`
* snapshots: `snapshot_download` (the follower), `snapshot_requests` (the leader), `snapshots` (its own)
* voter sets: `bootstrap`, `voter_changes`, `electorate`, `quorum`
* starting: `startup`, `config`; for operators: `status`; what must hold at any time: `invariants`
"""
