# A node of a quorum. Build at the root of the project:
#
#     docker build --build-arg REVISION=$(git rev-parse HEAD) -t quorumd .
#
# Everything is configured by QUORUMD_ variables; how to run it: docs/operations.md, "Containers".

# Any Debian with Python 3.11 or newer, and its venv module, serves.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# pip stays here; what runs has none.
RUN python3 -m venv /tools && python3 -m venv --without-pip /opt/quorumd
COPY deploy/containers/constraints.txt /source/
RUN /tools/bin/pip install setuptools==84.2.1 \
    && /tools/bin/pip --python /opt/quorumd/bin/python install \
        --no-deps --only-binary :all: -r /source/constraints.txt
COPY pyproject.toml README.md /source/
COPY config /source/config
COPY quorumd /source/quorumd
COPY raft /source/raft
COPY server /source/server
COPY storage /source/storage
COPY wire /source/wire
RUN /tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /source \
    && /tools/bin/pip --python /opt/quorumd/bin/python install --no-deps /wheels/*.whl \
    && /tools/bin/pip --python /opt/quorumd/bin/python check
# zstandard's second implementation, for PyPy.
RUN rm /opt/quorumd/lib/python3*/site-packages/zstandard/_cffi*.so

FROM ${BASE}
# The id is a number, so that an orchestrator sees that it is not root. A named volume takes over the
# owner of /var/lib/quorumd; a bind mount has to belong to 10001:10001.
RUN groupadd --gid 10001 quorumd \
    && useradd --uid 10001 --gid 10001 --no-log-init --home-dir /var/lib/quorumd \
        --shell /usr/sbin/nologin quorumd \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/quorumd
COPY --from=build /opt/quorumd /opt/quorumd
COPY deploy/containers/entrypoint.sh /usr/local/bin/quorumd-entrypoint
COPY deploy/containers/controller.yaml /etc/quorumd/controller.yaml
ENV PATH=/opt/quorumd/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    QUORUMD_STORAGE_DIR=/var/lib/quorumd \
    QUORUMD_HTTP_LISTEN=0.0.0.0:8080
USER 10001:10001
# Where `--config controller.yaml`, the default, finds the file.
WORKDIR /etc/quorumd
VOLUME /var/lib/quorumd
EXPOSE 8080 9093 9094
STOPSIGNAL SIGTERM
# -S: no site-packages, so that a check costs next to nothing.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python3", "-IS", "-c", "import os, socket; s = socket.create_connection(('127.0.0.1', int(os.environ['QUORUMD_HTTP_LISTEN'].rpartition(':')[2])), 2); s.sendall(b'GET /livez HTTP/1.0\\r\\n\\r\\n'); raise SystemExit(b' 200 ' not in s.recv(64))"]
ENTRYPOINT ["/usr/local/bin/quorumd-entrypoint"]
CMD ["start"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="quorumd" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
