"""Changes of the voter set, one module for each request that asks for one.

A leader queues requests, makes one change after the other, and replies (`pending_changes`). The next
voter set is appended only when the last one is committed, and a record of the leader's own epoch too:
else two majorities could miss each other. A set counts as soon as it is in the log, and the majority of the
new set commits it. Sources: KIP-853 and KIP-856 (AddVoter, RemoveVoter, UpdateVoter), KIP-642 (reassignment).
"""
