"""The consensus rules as a deterministic state machine: events come in, effects come out.

Nothing here touches a socket, a disk, a clock, a thread or a random generator: time is a parameter of
every step and random draws come through a function handed in at construction.
"""
