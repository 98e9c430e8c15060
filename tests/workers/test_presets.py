"""The ready-made augmentations by name."""

import pickle

import pytest

from crumpets_like.workers import presets
from crumpets_like.workers.rng import RandomResizedCrop


def test_names() -> None:
    assert presets.__all__ == sorted(presets.__all__)
    for name, rng in presets.PRESETS.items():
        assert presets.get_preset(name) is rng
        assert presets.get_preset(name.upper()) is rng
        assert pickle.loads(pickle.dumps(rng)).shape_only
    assert presets.get_preset("imagenet_train") is presets.IMAGENET_TRAIN
    assert presets.get_preset("imagenet_eval") is presets.IMAGENET_EVAL
    assert presets.get_preset("segmentation_train") is presets.SEGMENTATION_TRAIN


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="no preset 'imagenet'; the presets are random_resized_"):
        presets.get_preset("imagenet")
    with pytest.raises(ValueError, match="no preset None"):
        presets.get_preset(None)  # type: ignore[arg-type]


def test_imagenet_is_the_usual_one() -> None:
    train = presets.IMAGENET_TRAIN
    assert isinstance(train, RandomResizedCrop)
    assert (train.scale, train.ratio, train.hmirror) == ((0.08, 1.0), (3 / 4, 4 / 3), 0.5)
    assert presets.IMAGENET_MEAN == (0.485, 0.456, 0.406)
    assert presets.IMAGENET_STD == (0.229, 0.224, 0.225)
