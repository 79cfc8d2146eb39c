"""Messages to events, effects to messages: pure functions. The wire's sentinels stop here."""
