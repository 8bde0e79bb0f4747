# statetrim on NVIDIA GPUs: docker build --file docker/cuda.Dockerfile --tag statetrim:cuda .
#                           docker run --rm --gpus all --volume "$PWD:/work" statetrim:cuda doctor
# The wheels of torch bring CUDA's libraries; triton, which fla compiles its kernels with, needs a C compiler.
FROM python:3.12-slim
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir "/source[models,fla,evaluate,recover,report]" \
 && useradd --create-home --uid 1000 statetrim \
 && mkdir /work && chown statetrim /work
USER 1000
WORKDIR /work
ENTRYPOINT ["statetrim"]
CMD ["--help"]
