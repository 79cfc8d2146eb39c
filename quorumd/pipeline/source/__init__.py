"""The Spark data source `quorumd`: the log of a live quorum or of files, batch and streaming."""
