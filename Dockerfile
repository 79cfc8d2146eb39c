# A node of a quorum, and the pipeline. Build at the root of the project:
#
#     docker build --build-arg REVISION=$(git rev-parse HEAD) -t quorumd .
#     docker build --target pipeline -t quorumd-pipeline .
#
# How to run them: docs/operations.md, "Containers". A builder older than BuildKit makes every stage that
# stands before the wanted one: name it with --target node.

# Any Debian with Python 3.11 or newer, and its venv module, serves.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# The compiler stays here, too. Debian's Python has its headers in a package of their own.
RUN headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
    test -x /usr/bin/gcc -a -e "$headers/Python.h" || { apt-get -qq update \
    && apt-get -qq install --no-install-recommends gcc libc6-dev \
        $(test -e "$headers/Python.h" || echo python3-dev); }
# pip stays here; what runs has none.
RUN python3 -m venv /tools && python3 -m venv --without-pip /opt/quorumd
COPY deploy/containers/constraints.txt /source/
RUN /tools/bin/pip install setuptools==84.2.1 mypy==2.4.1 \
    && /tools/bin/pip --python /opt/quorumd/bin/python install \
        --no-deps --only-binary :all: -r /source/constraints.txt
COPY LICENSE MANIFEST.in README.md pyproject.toml pyspark_quorumd.py setup.py /source/
COPY config /source/config
COPY native /source/native
COPY quorumd /source/quorumd
COPY raft /source/raft
COPY security /source/security
COPY server /source/server
COPY storage /source/storage
COPY wire /source/wire
# The commit goes into the wheel, for --version.
ARG REVISION=unknown
RUN QUORUMD_COMPILE=1 QUORUMD_REVISION=${REVISION} \
        /tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /source \
    && /tools/bin/pip --python /opt/quorumd/bin/python install --no-deps /wheels/*.whl \
    && /tools/bin/pip --python /opt/quorumd/bin/python check
# zstandard's second implementation, for PyPy.
RUN rm /opt/quorumd/lib/python3*/site-packages/zstandard/_cffi*.so

FROM ${BASE} AS system
# The id is a number, so that an orchestrator sees that it is not root. A named volume takes over the
# owner of the directory below it; a bind mount has to belong to 10001:10001.
RUN groupadd --gid 10001 quorumd \
    && useradd --uid 10001 --gid 10001 --no-log-init --home-dir /var/lib/quorumd \
        --shell /usr/sbin/nologin quorumd
ENV PATH=/opt/quorumd/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="quorumd" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"

FROM system AS node
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/quorumd
COPY --from=build /opt/quorumd /opt/quorumd
COPY deploy/containers/entrypoint.sh /usr/local/bin/quorumd-entrypoint
ENV QUORUMD_STORAGE_DIR=/var/lib/quorumd QUORUMD_HTTP_LISTEN=0.0.0.0:8080
USER 10001:10001
# A controller.yaml mounted here is read; variables win, and none is needed.
WORKDIR /etc/quorumd
VOLUME /var/lib/quorumd
EXPOSE 8080 9093 9094
# -S: no site-packages, so that a check costs next to nothing.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python3", "-IS", "-c", "import os, socket; s = socket.create_connection(('127.0.0.1', int(os.environ['QUORUMD_HTTP_LISTEN'].rpartition(':')[2])), 2); s.sendall(b'GET /livez HTTP/1.0\\r\\n\\r\\n'); raise SystemExit(b' 200 ' not in s.recv(64))"]
ENTRYPOINT ["/usr/local/bin/quorumd-entrypoint"]
CMD ["start"]

FROM build AS pipeline-build
COPY deploy/containers/constraints-spark.txt /source/
# PyPI has no wheel of pyspark: it is made here, without a compiler.
RUN /tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /spark \
        -r /source/constraints-spark.txt \
    && /tools/bin/pip --python /opt/quorumd/bin/python install --no-deps /spark/*.whl \
    && /tools/bin/pip --python /opt/quorumd/bin/python check \
    && rm -r /spark

FROM system AS pipeline
# Spark puts what it unpacks and sorts into /tmp: let that be a tmpfs, with the right to run programs.
RUN install -d -o 10001 -g 10001 -m 0700 /tables
COPY --from=pipeline-build /opt/quorumd /opt/quorumd
ENV HOME=/tmp
USER 10001:10001
WORKDIR /tables
VOLUME /tables
ENTRYPOINT ["quorumd-pipeline"]
CMD ["--help"]

# What is built without --target.
FROM node
