"""One replicated partition: the core, its log, its peers and its clients, put together."""
