# headrace in a container: the compiled build on a slim base, for every platform of that base (docker buildx --platform).
# docs/how-to/run-in-a-container.md says how to build and run it.
FROM python:3.11-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
# 1: compile or fail, rather than make the slow build without a word.
RUN HEADRACE_COMPILE=1 pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
RUN python -m venv /opt/headrace \
    && /opt/headrace/bin/pip install --no-cache-dir /wheels/headrace-*.whl

FROM python:3.11-slim
COPY --from=build /opt/headrace /opt/headrace
COPY contrib/docker/headrace.toml /etc/headrace/headrace.toml
# A number, so that Kubernetes can see that it is not root.
RUN useradd --system --uid 10001 --home-dir /var/lib/headrace --create-home headrace
USER 10001:10001
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /var/lib/headrace
VOLUME /var/lib/headrace
EXPOSE 1883 18830
STOPSIGNAL SIGTERM
# Recovery of a large journal takes minutes: what fails meanwhile does not count.
HEALTHCHECK --start-period=10m --interval=10s --timeout=6s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:18830/readyz', timeout=5)"]
ENTRYPOINT ["headrace"]
CMD ["serve", "--config", "/etc/headrace/headrace.toml"]
