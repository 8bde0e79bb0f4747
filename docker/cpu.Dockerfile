# statetrim on CPUs: docker build --file docker/cpu.Dockerfile --tag statetrim:cpu .
#                    docker run --rm --volume "$PWD:/work" statetrim:cpu inspect MODEL
FROM python:3.12-slim
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
# hadolint ignore=DL3013
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
 && pip install --no-cache-dir "/source[models,evaluate,recover,report]" \
 && useradd --create-home --uid 1000 statetrim \
 && mkdir /work && chown statetrim /work
USER 1000
WORKDIR /work
ENTRYPOINT ["statetrim"]
CMD ["--help"]
