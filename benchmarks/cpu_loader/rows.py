"""Who is measured, at which settings, and what is claimed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Set = Literal["original", "resized"]
SETS: tuple[Set, ...] = ("original", "resized")


@dataclass(frozen=True)
class Setting:
    """What may be chosen for a peer: its decoder, empty where it has its own, and threads or processes."""

    decoder: str
    workers: int

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.decoder + ', ' if self.decoder else ''}{self.workers} workers"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One loader.

    Attributes:
        name: in options and results.
        function: in `torch_peers` or `own_peers`.
        settings: tried by --all-settings; the first is the best on both sets, where `best` does not say otherwise.
        modules: imported before the clock starts; the peer is absent where one is not installed.
        format: of `data.FORMATS`, or "files".
        filters: how its resize filters when it shrinks: "triangle", "area", "none", or "by decoder".
        own: wellfed itself.
        required: without it a comparison is not a result.
    """

    name: str
    function: str
    settings: tuple[Setting, ...]
    best: Mapping[Set, Setting] | None = None
    modules: tuple[str, ...]
    format: str
    filters: Literal["triangle", "area", "none", "by decoder"]
    own: bool = False
    required: bool = False

    @property
    def absent(self) -> str | None:
        """Why it cannot run here."""
        for module in self.modules:
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                return f"{module.partition('.')[0]} is not installed"
        return None

    def setting_for(self, set_name: Set) -> Setting:
        """The best one known on this set."""
        return (self.best or {}).get(set_name, self.settings[0])

    def filter_of(self, setting: Setting) -> str:
        """Of the resize at a setting."""
        return _FILTERS[setting.decoder] if self.filters == "by decoder" else self.filters


_FILTERS = {"torchvision": "triangle", "pillow": "triangle", "simplejpeg": "area"}
_SIMPLEJPEG = ("simplejpeg", "cv2")
_TORCH = ("torch", "torchvision")


def _settings(*decoders: str, workers: tuple[int, ...] = (2, 3)) -> tuple[Setting, ...]:
    return tuple(Setting(decoder, number) for decoder in decoders for number in workers)


_DECODED = _settings("simplejpeg", "torchvision")
_OWN = _settings("", workers=(2, 3, 4))

PEERS = (
    Peer(
        name="wellfed threads",
        function="own_peers:wellfed_threads",
        settings=_OWN,
        modules=("torch", "wellfed.pipeline.loader.factory"),
        format="wellfed",
        filters="triangle",
        own=True,
    ),
    Peer(
        name="wellfed processes",
        function="own_peers:wellfed_processes",
        settings=_OWN,
        modules=("torch", "wellfed.pipeline.loader.factory"),
        format="wellfed",
        filters="triangle",
        own=True,
    ),
    Peer(
        name="ImageFolder + Pillow",
        function="torch_peers:imagefolder",
        settings=_settings("", workers=(2, 3)),
        modules=(*_TORCH, "PIL"),
        format="files",
        filters="triangle",
    ),
    Peer(
        name="DataLoader + torchvision decode",
        function="torch_peers:files",
        settings=_settings("torchvision"),
        modules=_TORCH,
        format="files",
        filters="triangle",
    ),
    Peer(
        name="threads + simplejpeg + OpenCV",
        function="own_peers:threads",
        settings=_settings("simplejpeg"),
        modules=("torch", *_SIMPLEJPEG),
        format="files",
        filters="area",
        required=True,
    ),
    Peer(
        name="torchdata nodes",
        function="own_peers:nodes",
        settings=_DECODED,
        modules=("torchdata.nodes", *_TORCH, *_SIMPLEJPEG),
        format="files",
        filters="by decoder",
        required=True,
    ),
    Peer(
        name="webdataset",
        function="torch_peers:webdataset",
        settings=_DECODED,
        modules=("webdataset", *_TORCH, *_SIMPLEJPEG),
        format="webdataset",
        filters="by decoder",
        required=True,
    ),
    Peer(
        name="LitData",
        function="torch_peers:litdata",
        settings=_DECODED,
        modules=("litdata", *_TORCH, *_SIMPLEJPEG),
        format="litdata",
        filters="by decoder",
        required=True,
    ),
    Peer(
        name="Streaming",
        function="torch_peers:streaming",
        settings=_DECODED,
        modules=("streaming", *_TORCH, *_SIMPLEJPEG),
        format="mds",
        filters="by decoder",
    ),
    Peer(
        name="FFCV",
        function="own_peers:ffcv",
        settings=_settings("", workers=(2, 3)),
        modules=("ffcv.loader", "torch"),
        format="ffcv",
        # INTER_AREA in its resize, by ffcv/fields/rgb_image.py.
        filters="area",
    ),
    Peer(
        name="SPDL",
        function="own_peers:spdl",
        settings=_DECODED,
        modules=("spdl.pipeline", *_TORCH, *_SIMPLEJPEG),
        format="files",
        filters="by decoder",
    ),
    Peer(
        name="Grain",
        function="own_peers:grain",
        settings=_DECODED,
        modules=("grain", *_TORCH, *_SIMPLEJPEG),
        format="files",
        filters="by decoder",
        required=True,
    ),
    Peer(
        name="HF datasets",
        function="torch_peers:hf",
        settings=_DECODED,
        modules=("datasets", *_TORCH, *_SIMPLEJPEG),
        format="parquet",
        filters="by decoder",
    ),
    Peer(
        name="tf.data",
        function="own_peers:tfdata",
        settings=_settings("", workers=(3, 2)),
        modules=("tensorflow",),
        format="files",
        filters="none",
        required=True,
    ),
    Peer(
        name="tf.data antialiased",
        function="own_peers:tfdata_antialiased",
        settings=_settings("", workers=(3, 2)),
        modules=("tensorflow",),
        format="files",
        filters="triangle",
    ),
    Peer(
        name="DALI cpu",
        function="own_peers:dali",
        settings=_settings("", workers=(2, 3)),
        modules=("nvidia.dali.plugin.pytorch", "torch"),
        format="files",
        filters="triangle",
        required=True,
    ),
)
BY_NAME = {peer.name: peer for peer in PEERS}
PLAIN = "ImageFolder + Pillow"
NOT_ANTIALIASED = "tf.data"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A ratio of wellfed's faster backend to others.

    Attributes:
        own_set, other_set: the images that each side loads.
        against: "antialiased", "all", or a peer's name.
        wanted: least ratio.
    """

    name: str
    own_set: Set
    other_set: Set
    against: str
    wanted: float


CLAIMS = (
    Claim(
        name="original JPEGs, best antialiased peer",
        own_set="original",
        other_set="original",
        against="antialiased",
        wanted=1.45,
    ),
    Claim(
        name="original JPEGs, tf.data without antialias",
        own_set="original",
        other_set="original",
        against=NOT_ANTIALIASED,
        wanted=1.0,
    ),
    Claim(name="resized to 256, best peer", own_set="resized", other_set="resized", against="all", wanted=1.2),
    Claim(
        name="the whole: resized to 256 against original files with torch and Pillow",
        own_set="resized",
        other_set="original",
        against=PLAIN,
        wanted=5.0,
    ),
)
FIRST_BATCH_SECONDS = 0.4
PEAK_PSS_BYTES = 760_000_000
