"""Locks, elections and registrations: keys that belong to a process for as long as it renews them.

`keys` and `claim_record` say what is in the log, `contest` what one client sees of it, `contender` has the
rules, without I/O and clock; `coordinator` follows the log and writes, once for all that a client holds or
waits for. `tenure` brings them together; `lock` is what users see of it, `listing` what people see.
Source: docs/coordination.md.
"""
