"""Ready-made workers for images.

==================== =========================================================================
ImageWorker          decodes and augments one image per sample; the others are made of it
ClassificationWorker an image and its label
FCNWorker            an image, and the same as a target
SegmentationWorker   an image and the class of each of its pixels
SaliencyWorker       an image and a map of where people look
DetectionWorker      an image and boxes
KeypointWorker       an image and keypoints
TransformWorker      an image through a callable of yours: torchvision, albumentations, your own
TokenWorker          no image: sequences of integers, padded or packed into rows of one length
ImageFolder          a folder of images, one subfolder per class, as a dataset
UniformRNG           draws each parameter of an augmentation from a range
MixtureRNG           draws them as crumpets 3.0 does
NoRNG                draws nothing
==================== =========================================================================

Public functions: `decode_image`, `make_transform`, `randomize_image`; `pack` and `PackedDocuments`
put several documents into each row of a `TokenWorker`. Ready-made augmentations are in
`crumpets_like.workers.presets`.

General layout: ``parameters`` has the names, defaults and checks of an image's parameters, ``rng``
and ``presets`` draw them. ``decoding`` turns bytes, paths and arrays into pixels, after
``headers`` and ``av1`` have looked at their sizes, ``geometry`` has the affine map, ``warping``
draws pixels through it, ``pixels`` changes their values, ``writing`` puts them into a row of a
buffer. ``image`` joins all of these, and each further module has one worker that extends it.
"""

from crumpets_like.workers.classification import ClassificationWorker
from crumpets_like.workers.decoding import decode_image
from crumpets_like.workers.detection import DetectionWorker
from crumpets_like.workers.fcn import FCNWorker
from crumpets_like.workers.folder import ImageFolder
from crumpets_like.workers.geometry import make_transform
from crumpets_like.workers.image import ImageWorker, randomize_image
from crumpets_like.workers.keypoints import KeypointWorker
from crumpets_like.workers.rng import MixtureRNG, NoRNG, UniformRNG
from crumpets_like.workers.saliency import SaliencyWorker
from crumpets_like.workers.segmentation import SegmentationWorker
from crumpets_like.workers.tokens import PackedDocuments, TokenWorker, pack
from crumpets_like.workers.transform import TransformWorker

__all__ = [
    "ClassificationWorker",
    "DetectionWorker",
    "FCNWorker",
    "ImageFolder",
    "ImageWorker",
    "KeypointWorker",
    "MixtureRNG",
    "NoRNG",
    "PackedDocuments",
    "SaliencyWorker",
    "SegmentationWorker",
    "TokenWorker",
    "TransformWorker",
    "UniformRNG",
    "decode_image",
    "make_transform",
    "pack",
    "randomize_image",
]
