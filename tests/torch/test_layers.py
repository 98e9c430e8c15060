"""Layers for mini-batches of images."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from crumpets_like.torch import Normalize, Unpacker  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TestNormalize:
    def test_floats(self):
        image = torch.rand(2, 3, 4, 5)
        expected = (image.numpy() - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
        assert np.allclose(Normalize(MEAN, STD)(image), expected, atol=1e-6)

    def test_integers_are_divided_by_255(self):
        image = torch.randint(256, (2, 3, 4, 5), dtype=torch.uint8)
        result = Normalize(MEAN, STD)(image)
        assert result.dtype == torch.float32
        assert torch.allclose(result, Normalize(MEAN, STD)(image / 255))

    def test_input_is_not_changed(self):
        image = torch.ones(1, 3, 2, 2)
        Normalize(MEAN, STD)(image)
        assert (image == 1).all()

    def test_one_number_for_all_channels(self):
        layer = Normalize(0.5, 0.25)
        assert torch.equal(layer(torch.ones(2, 5, 1, 1)), torch.full((2, 5, 1, 1), 2.0))
        assert torch.equal(layer(torch.zeros(1, 3, 3)), torch.full((1, 3, 3), -2.0))

    @pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
    def test_what_holds_the_numbers(self, kind):
        assert Normalize(kind(MEAN), kind(STD)).mean.flatten().tolist() == pytest.approx(MEAN)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_dtype_of_floats_is_kept(self, dtype):
        assert Normalize(MEAN, STD)(torch.ones(1, 3, 2, 2, dtype=dtype)).dtype == dtype

    def test_dtype_of_the_layer(self):
        layer = nn.Sequential(Normalize(MEAN, STD), nn.Conv2d(3, 2, 1)).half()
        assert layer(torch.ones(1, 3, 2, 2, dtype=torch.uint8)).dtype == torch.float16

    def test_it_is_part_of_a_network_without_parameters(self):
        network = nn.Sequential(Normalize(MEAN, STD), nn.Conv2d(3, 2, 1))
        assert sorted(network.state_dict()) == ["1.bias", "1.weight"]
        image = torch.rand(1, 3, 2, 2, requires_grad=True)
        network(image).sum().backward()
        assert image.grad is not None
        assert network.to("meta")[0].mean.device.type == "meta"

    def test_another_number_of_channels(self):
        with pytest.raises(ValueError, match=r"has 3 means, but the image has 1 channels: shape"):
            Normalize(MEAN, STD)(torch.ones(2, 1, 4, 4))

    @pytest.mark.parametrize(
        ("mean", "std", "message"),
        [
            ((0.5, 0.5), (1.0,), r"as many of each, got \(0.5, 0.5\) and"),
            ((), (), "as many of each"),
            (float("nan"), 1.0, "mean must be finite, got nan"),
            (0.5, 0.0, "std must be finite and > 0, got 0.0"),
            (0.5, (1.0, -1.0), "as many of each"),
            ((0.5, 0.5), (1.0, float("inf")), "std must be finite"),
        ],
    )
    def test_numbers_that_cannot_be(self, mean, std, message):
        with pytest.raises(ValueError, match=message):
            Normalize(mean, std)

    def test_repr(self):
        assert repr(Normalize(0.5, 0.25)) == "Normalize(mean=[0.5], std=[0.25])"


class TestUnpacker:
    def test_the_mini_batch_and_the_output(self):
        mini_batch = {"image": torch.ones(2, 4), "label": torch.arange(2), "name": ["a", "b"]}
        model = Unpacker(nn.Linear(4, 3))
        result = model(mini_batch)
        assert list(result) == ["image", "label", "name", "output"]
        assert torch.equal(result["output"], model.module(mini_batch["image"]))
        assert result["name"] is mini_batch["name"]
        assert "output" not in mini_batch

    def test_keys(self):
        result = Unpacker(nn.Identity(), input_key="x", output_key="x")({"x": torch.ones(1)})
        assert list(result) == ["x"]

    def test_one_after_the_other(self):
        model = nn.Sequential(
            Unpacker(nn.Flatten(), output_key="flat"), Unpacker(nn.Linear(4, 2), "flat")
        )
        assert model({"image": torch.ones(3, 1, 2, 2)})["output"].shape == (3, 2)

    def test_parameters_are_found(self):
        assert len(list(Unpacker(nn.Linear(4, 3)).parameters())) == 2

    def test_no_input(self):
        with pytest.raises(ValueError, match=r"has no 'image', only 'x', 'y': input_key names"):
            Unpacker(nn.Identity())({"x": 1, "y": 2})

    def test_repr(self):
        assert "input_key='image', output_key='output'" in repr(Unpacker(nn.Identity()))
