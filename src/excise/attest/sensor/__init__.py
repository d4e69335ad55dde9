"""A biometric sensor: capture an image, embed the face, collect the integrity log, sign, send.

The four steps are those of M. Preisach's thesis (Digidow's Biometric Sensor). Each is a function
that hands its result over in memory; the command line can also hand over by files, as the
original did, where every file and program read adds entries to the measurement list.
"""

from excise.attest.sensor.collect import Collector
from excise.attest.sensor.embed import DlibEmbedder, Embedder, Embedding
from excise.attest.sensor.images import Image, read_image
from excise.attest.sensor.sources import ImageSource, open_source

__all__ = [
    "Collector",
    "DlibEmbedder",
    "Embedder",
    "Embedding",
    "Image",
    "ImageSource",
    "open_source",
    "read_image",
]
