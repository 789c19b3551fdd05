# One file, a target for each container: api, worker, scheduler, janitor (which also migrates), operator.
#
#   docker build --target worker -t researchcopilot-worker .
#
# Each holds its own locked requirements and nothing else: no compiler, no pip, no cache. It runs as
# a number, not a name (a kubelet cannot prove that a name is not root), on a read-only root, and
# needs no network but its servers. Agents of your own: FROM …worker, see charts/researchcopilot.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-trixie

# What all images stand on: an account without a home, a shell or a password, and nothing that
# could lend its caller another's rights.
FROM ${PYTHON_IMAGE} AS base
RUN echo 'researchcopilot:x:10001:10001::/nonexistent:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'researchcopilot:x:10001:' >> /etc/group \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} +

# The distribution as a wheel, by the build backend of requirements/dev.txt with its hashes.
FROM ${PYTHON_IMAGE} AS wheel
ENV PATH=/build/bin:/usr/local/bin:/usr/bin:/bin PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /build
WORKDIR /source
COPY requirements/dev.txt requirements/
RUN sed -n '/^uv-build==/,/^[^ ]/{/^uv-build==/p;/^ /p}' requirements/dev.txt > /build/backend.txt \
 && /build/bin/pip install --quiet --require-hashes --only-binary :all: -r /build/backend.txt
COPY pyproject.toml README.md LICENSE ./
COPY services services
RUN /build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels .

# A virtual environment for each part. Bytecode is compiled here, and is valid whatever the clock
# says: the root is read-only later.
FROM ${PYTHON_IMAGE} AS install
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /build && python3 -m venv --without-pip /app
COPY --from=wheel /wheels /wheels
COPY containers/install /build/install

FROM install AS install-api
COPY requirements/api.txt /build/
RUN /build/install /build/api.txt

FROM install AS install-worker
COPY requirements/worker.txt /build/
RUN /build/install /build/worker.txt

FROM install AS install-scheduler
COPY requirements/scheduler.txt /build/
RUN /build/install /build/scheduler.txt

FROM install AS install-janitor
COPY requirements/janitor.txt /build/
RUN /build/install /build/janitor.txt

FROM install AS install-operator
COPY requirements/operator.txt /build/
RUN /build/install /build/operator.txt

FROM base AS runtime
ARG VERSION=0.0.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="ResearchCopilot" \
      org.opencontainers.image.description="A run platform for AI research agents that an operations team can trust" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RC_HEALTH_HOST=* \
    RC_HEALTH_PORT=9090 \
    RC_LOG_FORMAT=json
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
EXPOSE 9090
ENTRYPOINT ["/app/bin/python", "-m", "researchcopilot"]

FROM runtime AS api
COPY --from=install-api /app /app
ENV RC_API_HOST=* RC_API_PORT=8080
EXPOSE 8080
CMD ["api"]

FROM runtime AS scheduler
COPY --from=install-scheduler /app /app
CMD ["scheduler"]

FROM runtime AS janitor
COPY --from=install-janitor /app /app
CMD ["janitor"]

FROM runtime AS operator
COPY --from=install-operator /app /app
CMD ["operator"]

# The last one, and so the default: the image that others build upon, with
#   USER 0
#   RUN pip install --no-cache-dir <your agents>
#   USER 10001:10001
FROM runtime AS worker
COPY --from=install-worker /app /app
COPY containers/pip /app/bin/pip
CMD ["worker"]
