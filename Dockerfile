# syntax=docker/dockerfile:1
# Targets: `operator` (operator and gateway, slim) and `server` (CUDA).

# --- operator and gateway ----------------------------------------------------------------------------------------
FROM python:3.12.8-slim-bookworm AS operator-build
RUN python -m venv /opt/pagetide
ENV PATH=/opt/pagetide/bin:$PATH
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY server server
COPY kernels kernels
RUN pip install --no-cache-dir ".[operator]"

FROM python:3.12.8-slim-bookworm AS operator
COPY --from=operator-build /opt/pagetide /opt/pagetide
# The user is a number without an entry in /etc/passwd: libraries that ask for a name or a home find them here.
ENV PATH=/opt/pagetide/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=pagetide HOME=/tmp
USER 10001:10001
EXPOSE 8080 9090
# No HEALTHCHECK: operator and gateway answer on different ports, and Kubernetes asks by its own probes.
ENTRYPOINT ["pagetide"]
CMD ["operator"]

# --- server ------------------------------------------------------------------------------------------------------
# The CUDA of the base is that of torch's packages: so a node whose driver is too old for them (before 580) refuses the
# container and says why.
FROM nvidia/cuda:13.0.0-base-ubuntu24.04 AS server-build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv g++ && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/pagetide
ENV PATH=/opt/pagetide/bin:$PATH
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY server server
COPY kernels kernels
RUN pip install --no-cache-dir ".[server]"
# The ops for processors, for each kind of them: the image that runs has no C++ compiler.
RUN python -m pagetide_kernels.cpu.prebuilt

# Triton compiles a small launcher for each kernel at run time and needs a C compiler and Python's headers for it;
# they are no build tools left over.
FROM nvidia/cuda:13.0.0-base-ubuntu24.04 AS server
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-dev gcc libc6-dev libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=server-build /opt/pagetide /opt/pagetide
ENV PATH=/opt/pagetide/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=pagetide HOME=/tmp \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=10s --start-period=30m CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=9)"]
ENTRYPOINT ["pagetide", "serve"]
