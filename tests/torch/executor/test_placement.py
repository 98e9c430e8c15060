"""Parts of one graph on several devices."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from crumpets_like.torch.executor import trace  # noqa: E402

CPU, META = torch.device("cpu"), torch.device("meta")


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.fc(x) * self.scale + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = Head()

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


def test_a_part_elsewhere():
    module = Net()
    groups = {"head": "meta"}
    reqs = {"head.fc.weight": "write", "head.scale": "write"}
    executor = trace(module).simple_bind("cpu", reqs, group2device=groups, x=(5, 3))
    assert module.head.scale.device == META
    assert module.body.weight.device == CPU
    for name, array in executor.arg_dict.items():
        assert array.device == (META if name.startswith("head.") else CPU)
    executor.forward(is_train=True, x=torch.ones(5, 3))
    assert executor.outputs[0].device == META
    assert executor.outputs[0].shape == (5, 2)
    assert module.norm.num_batches_tracked == 1
    executor.backward(torch.ones(5, 2, device="meta"))
    assert executor.grad_dict["head.scale"].device == META
    assert "move(norm, meta)" in executor.debug_str()


def test_the_longest_prefix_counts():
    module = Net()
    groups = {"head": "meta", "head.fc": "cpu"}
    executor = trace(module).simple_bind("cpu", "null", group2device=groups, x=(5, 3))
    assert executor.arg_dict["head.fc.weight"].device == CPU
    assert executor.arg_dict["head.scale"].device == META
    assert executor.forward()[0].device == META


def test_everything_here():
    torch.manual_seed(0)
    module = Net()
    plain = trace(module).simple_bind("cpu", x=(5, 3))
    split = trace(module).simple_bind("cpu", group2device={"head": "cpu"}, x=(5, 3))
    x = torch.randn(5, 3)
    assert torch.equal(plain.forward(x=x)[0], split.forward(x=x)[0])
    smaller = split.reshape(x=(2, 3))
    assert smaller.forward(x=x[:2])[0].shape == (2, 2)


def test_bound_arrays_must_be_there():
    module = Net().to("meta")
    args = {"x": torch.zeros(5, 3, device="meta"), **dict(module.named_parameters())}
    with pytest.raises(ValueError, match=r"head\.fc\.weight is on meta, but is bound on cpu"):
        trace(module).bind("meta", args, group2device={"head.fc": "cpu"})


def test_what_cannot_be_placed():
    with pytest.raises(ValueError, match="group2device names tail; there are body, norm, head"):
        trace(Net()).simple_bind("cpu", group2device={"tail": "meta"}, x=(5, 3))
    with pytest.raises(ValueError, match="group2device names head"):
        trace(lambda x: x + 1).simple_bind("cpu", group2device={"head": "meta"}, x=(5, 3))
    with pytest.raises(ValueError, match="splits a graph, and this symbol has none"):
        trace(Net(), capture=False).simple_bind("cpu", group2device={"head": "meta"}, x=(5, 3))
