"""Seeing what the network will see: a contact sheet of a few samples in several draws.

General layout: ``draws`` lets the worker prepare the samples, ``pictures`` makes pictures of what
it has written, with what belongs to them drawn over by ``overlays``; ``sheet`` puts these together,
and ``cli`` is the command ``crumpets-like preview``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..dataloader import TurboDataLoader
    from .draws import Draws

__all__ = ["Previewable", "make_sheet"]


class Previewable:
    """Gives a loader its :meth:`preview`."""

    def preview(self, n: int = 4) -> Image:
        """Return a picture of what an image worker makes of `n` samples: a notebook shows it.

        Each row is one sample: first the whole image, then eight draws, with the parameters that
        are not at their defaults under each. Boxes, masks, gaze maps and keypoints are drawn over.

        What is shown is what training gets. The samples are the first ones of the next epoch, in
        the loader's own order, and the draws come from its seed: that of column *epoch e* is what
        the sample gets if it comes at the same place in epoch e. So the first draw is the very
        picture of the next epoch, and without `shuffle` the others are those of the epochs behind
        it. With a sampler that is not one of :mod:`crumpets_like.sampling`, or a batch sampler,
        the samples are the first ones of the dataset, drawn as if they came first in the epoch: a
        sampler is not asked, since that could change what it gives later.

        The loader need not be started, and nothing of it moves: no worker is started, `iterations`
        and sampler stay where they are, and so do the global random generators. A copy of the
        worker prepares the samples in the calling thread. Of samples that fail, the first raises
        here; with ``on_error="skip"`` the next ones are shown in their place, up to 32 of them. A
        dataset's ``set_epoch`` is not called.

        Parameters
        ----------
        n : int
            Number of samples; fewer are shown if the epoch has not as many.

        Returns
        -------
        PIL.Image.Image
            RGB. Pixels that are left to the device (`gpu_augmentation`) are augmented here, which
            agrees to about one part in 255; normalised and converted ones are shown as they were.

        Raises
        ------
        ImportError
            If Pillow is missing: it comes with the extra ``image``.
        TypeError, ValueError
            If `n` is no count, the worker is no image worker, there is no sample, or the loader
            reads an iterable: it could not be read again from the beginning.
        Exception
            What the dataset or the worker raises.
        """
        return make_sheet(cast("TurboDataLoader", self), n)[0]


def make_sheet(loader: TurboDataLoader, n: int) -> tuple[Image, Draws]:
    """Return what :meth:`Previewable.preview` does, and which samples it shows."""
    try:
        from .pictures import preview
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "PIL":
            raise
        raise ImportError(
            "preview needs Pillow, which cannot be imported: pip install 'crumpets-like[image]'"
        ) from error
    return preview(loader, n)
