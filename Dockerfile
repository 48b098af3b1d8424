# docs/containers.md says how to build and start it. `make fresh CONTAINER=1` carries out these steps without a container engine.

# What pip cannot install. The devcontainer starts from here.
FROM debian:bookworm-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN <<STEP
    set -e
    apt-get update
    apt-get install -y --no-install-recommends bubblewrap ca-certificates g++ git make python3 python3-dev python3-venv
    rm -rf /var/lib/apt/lists/*
    useradd --create-home learner
    install -d -o learner /work
STEP

# Every lab. CUDA's libraries and its compiler come with the packages, so a GPU needs only its driver, from the host.
FROM base AS lab
COPY . /src
RUN <<STEP
    set -e
    python3 -m venv /opt/lab
    /opt/lab/bin/pip install '/src[all]'
STEP
ENV PATH=/opt/lab/bin:$PATH
USER learner
WORKDIR /work
CMD ["bash"]
