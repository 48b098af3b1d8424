# Untested: written where no container engine was available. docs/containers.md says how to build and start it, and what the sandbox needs.

FROM debian:12-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/lab/bin:$PATH
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap ca-certificates g++ git make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/lab
COPY . /src

# Every lab without a GPU, and nsys for the host's side.
FROM base AS cpu
RUN sed -i 's/^Components: main$/Components: main contrib non-free/' /etc/apt/sources.list.d/debian.sources \
    && apt-get update \
    && apt-get install -y --no-install-recommends nsight-systems \
    && rm -rf /var/lib/apt/lists/* \
    && pip install '/src[labs,dali,gpu]'
RUN useradd --create-home learner
USER learner
WORKDIR /work
CMD ["bash", "-l"]

# The same with a GPU: NVIDIA's image has the CUDA toolkit; nsys, ncu and compute-sanitizer come from its repository.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS cuda
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/lab/bin:$PATH
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap g++ git make nsight-compute-2025.3.1 nsight-systems-2025.3.2 python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/lab
COPY . /src
RUN pip install '/src[labs,dali,gpu,ncu]' \
    && useradd --create-home learner
USER learner
WORKDIR /work
CMD ["bash", "-l"]
