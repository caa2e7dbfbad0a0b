# wellfed on PyTorch's CUDA image.
#
#   docker build -t wellfed .
#   docker run --rm --gpus all --shm-size=8g -v "$PWD/data:/data" wellfed tune /data/wds --step resnet50
#
# --shm-size: batches of worker processes cross over in /dev/shm, of which Docker gives 64 MB. One batch of 256
# images of 224 pixels takes 39 MB, and workers x prefetch of them are under way: 8 workers with 2 each need 620 MB.
FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime

# For the C extension that decodes JPEGs; libjpeg stays, since the extension is linked to it.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libjpeg-dev && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 wellfed

WORKDIR /opt/wellfed
COPY pyproject.toml setup.py README.md LICENSE ./
COPY pipeline pipeline
COPY converters converters
RUN python -m pip install --no-cache-dir .

USER 1000
WORKDIR /home/wellfed
ENTRYPOINT ["wellfed"]
CMD ["doctor"]
