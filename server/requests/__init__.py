"""One module per family of requests: decodes, asks the partition, responds."""
