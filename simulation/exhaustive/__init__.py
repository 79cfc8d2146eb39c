"""Every state that three real replicas can reach within a small scope, each checked.

`python -m simulation.exhaustive` runs the real `RaftNode` under the real `Driver` on simulated disks and
messages, and takes every action in every state:

- a message arrives, in any order, or is lost; a client appends a record at a leader;
- a timer of a replica runs out, whichever of those that run;
- pending writes reach the disk: those of the oldest event that has some, or all of them;
- a replica crashes and starts again from its disk. Any first part of its pending writes may have reached
  that, and of later ones the quorum states and truncations, which do not wait for the sync of records.

The scope. Three voters, named by the log; two records, synced and committed, in every log. At the start
one replica leads the first epoch and all that it wrote is committed everywhere (or no replica has led yet).

- `epochs`: so many epochs can have a leader, that of the start included. What would begin another epoch,
  or a campaign for one, does not happen.
- `appends`, `losses`, `crashes`: so many in all. `in_flight`: so many messages between replicas at once.
  If a replica sends more than there is room for, any of them get through; the others are lost, which
  does not count as a loss. A message may stay in flight for ever.
- A request that can have no response any more, because it or its response was lost or the receiver crashed,
  fails at once. A crash takes no message out of the network. A response that its asker does not wait for
  any more is no message: the core drops it unseen.
- Peers' processes are never reported as gone, and none shuts down.

Time is left to chance: only whether a timer runs is kept, never for how long. So every order of timeouts is
explored, also those that real clocks rule out, but for two: while a fetch is parked, a leader neither
repeats BeginQuorumEpoch to that voter nor loses its quorum, because fetches are parked for less time. A
timer that runs out is an event of its own. Not explored: a timeout that is noticed late, together with
another event; and the end of a parked fetch that has brought nothing new.

Three options make more of the protocol part of the scope, see `frozen.Traffic`. Without them every voter
wins its pre-votes at once, replicas without leader find one by BeginQuorumEpoch and Vote only, and leaders
give way only to a higher epoch or a crash. With `discovery` a request that fails may lead to others being
sent: of several that fail at once, the order is that of the circle.

What makes it small enough, and why nothing is lost by it:

- A replica in the same state takes the same step on the same event, so the core runs once for both.
  `frozen` defines what "the same" means, field by field.
- States that differ only in the ids of replicas count once. Every step of the core is taken under all six
  assignments of ids, and compared.
- A state that differs from a visited one only in having less left to be lost or to crash can do nothing
  that the visited one cannot.
- A request that its sender has given up is dropped once the receiver's disk makes it void for good; the
  response to BeginQuorumEpoch without news for the leader arrives at once.
- With a leader known, the vote in its epoch is forgotten: it can only have been for that leader, for the
  voter itself, or for none, which is checked.

Checked in every step: `quorumd.raft.invariants`, the assertions of the core, one vote an epoch over crashes,
and that the log is what the rules believe. In every state: log matching, and that what was ever said to be
committed is on the disks of a majority. Whenever it happens: one leader an epoch, completeness of the new
leader's log, one committed history.

Complete, with no violation, `epochs` being 2 and a leader at the start:

    appends  in_flight  losses  crashes      states  transitions  depth
          0          3       0        0       3,921       15,138     26
          1          1       1        0      63,762      271,030     39
          1          3       0        0     259,638    1,237,499     39
          1          3       2        1   5,073,793   37,824,435     43  (the defaults)
          2          3       0        0   2,646,745   14,109,993     44
          2          3       2        1  56,101,566  451,327,145     51
"""
