"""The HTTP listener: health, status and Prometheus' metrics."""
