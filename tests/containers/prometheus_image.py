"""Debian's Prometheus as an image that stands in for the official one, where that cannot be pulled."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.containers.engine import Engine
from tests.deploy.prometheus import programs

NAME = "quorumd-drill-prometheus"
# As in the official image: the same user and paths, and a wget for the healthcheck.
_DOCKERFILE = """
FROM {base}
COPY prometheus /bin/prometheus
COPY wget /bin/wget
RUN install -d -o nobody -g nogroup /prometheus /etc/prometheus
USER nobody
WORKDIR /prometheus
EXPOSE 9090
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""
_WGET = """#!/usr/bin/python3 -IS
import sys, urllib.request
urllib.request.urlopen(sys.argv[-1], timeout=2)
"""


def prometheus_image(docker: Engine, base: str) -> str:
    """The name of the image, made now. Raises CannotFetch if there is no program to put into it."""
    with tempfile.TemporaryDirectory(prefix="quorumd-prometheus-") as name:
        context = Path(name)
        shutil.copy(programs().prometheus, context / "prometheus")
        (context / "wget").write_text(_WGET)
        (context / "wget").chmod(0o755)
        (context / "Dockerfile").write_text(_DOCKERFILE.format(base=base))
        docker.docker("build", "-t", NAME, str(context))
    return NAME
