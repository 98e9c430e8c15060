"""Ready-made workers.

================== ===========================================================
ClassificationWorker decodes and augments one image per sample, with its label
RandomAffine       draws the parameters of an image's augmentation
================== ===========================================================

General layout: ``decoding`` turns bytes, paths and arrays into images, ``affine`` warps an image
into a row of a buffer, ``classification`` is the worker that joins them.
"""

from crumpets_like.workers.affine import RandomAffine
from crumpets_like.workers.classification import ClassificationWorker
from crumpets_like.workers.folder import ImageFolder

__all__ = ["ClassificationWorker", "ImageFolder", "RandomAffine"]
