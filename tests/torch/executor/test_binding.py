"""What is bound, and what is refused."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from crumpets_like.torch.executor import trace  # noqa: E402


def total(a, b):
    return 2 * a + b


def arrays(*sizes):
    return [torch.zeros(size) for size in sizes]


def bind(args=None, args_grad=None, grad_req="write", **options):
    return trace(total).bind(
        "cpu", arrays(2, 2) if args is None else args, args_grad, grad_req, **options
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1, bias=False)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x):
        return self.norm(self.fc(x))


@pytest.mark.parametrize("named", [False, True])
def test_the_callers_arrays_are_bound(named):
    a, b = arrays(2, 2)
    grads = arrays(2, 2)
    if named:
        executor = bind({"b": b, "a": a}, {"b": grads[1], "a": grads[0]})
    else:
        executor = bind([a, b], grads)
    assert executor.arg_dict["a"] is a
    assert executor.arg_dict["b"] is b
    assert [executor.grad_dict["a"], executor.grad_dict["b"]] == grads
    assert executor.arg_arrays[0] is a
    assert executor.grad_arrays[1] is grads[1]
    executor.forward(is_train=True, a=torch.tensor([1.0, 2.0]), b=torch.tensor([2.0, 3.0]))
    assert a.tolist() == [1, 2]
    assert executor.outputs[0].tolist() == [4, 7]
    executor.backward(executor.outputs)
    assert grads[0].tolist() == [8, 14]
    assert grads[1].tolist() == [4, 7]


def test_without_gradients():
    executor = bind()
    assert executor.grad_dict == {"a": None, "b": None}
    assert executor.grad_arrays == [None, None]
    executor.forward(is_train=True)
    executor.backward()
    executor.backward(torch.ones(2))


def test_gradients_of_some_arguments():
    grad = torch.zeros(2)
    executor = bind(args_grad={"b": grad})
    assert executor.grad_dict["a"] is None
    executor.forward(is_train=True)
    executor.backward(torch.ones(2))
    assert grad.tolist() == [1, 1]
    executor = bind(args_grad=[None, grad])
    executor.forward(is_train=True)
    executor.backward(torch.full((2,), 3.0))
    assert grad.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("grad_req", "expected"),
    [
        ("write", ([2, 2], [1, 1])),
        ("add", ([7, 7], [6, 6])),
        ("null", ([5, 5], [5, 5])),
        (["add", "write"], ([7, 7], [1, 1])),
        (("null", "add"), ([5, 5], [6, 6])),
        ({"b": "write"}, ([5, 5], [1, 1])),
    ],
)
def test_grad_req(grad_req, expected):
    grads = {"a": torch.full((2,), 5.0), "b": torch.full((2,), 5.0)}
    executor = bind(args_grad=grads, grad_req=grad_req)
    executor.forward(is_train=True)
    executor.backward(torch.ones(2))
    assert (grads["a"].tolist(), grads["b"].tolist()) == expected
    assert executor.grad_dict["a"] is grads["a"]


def test_null_allocates_nothing():
    executor = trace(total).simple_bind("cpu", "null", a=(2,), b=(2,))
    assert executor.grad_dict == {"a": None, "b": None}
    executor = trace(total).simple_bind("cpu", {"a": "write"}, a=(2,), b=(2,))
    assert executor.grad_dict["a"].tolist() == [0, 0]
    assert executor.grad_dict["b"] is None


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"args": {"a": torch.zeros(2)}}, ValueError, "args lacks b; it needs a, b"),
        ({"args": arrays(2)}, ValueError, "args has 1 entries for 2 names: a, b"),
        ({"args": arrays(2, 2, 2)}, ValueError, "args has 3 entries for 2 names"),
        ({"args": torch.zeros(2)}, TypeError, "args must be a list or dict of tensors, got Tensor"),
        (
            {"args": [torch.zeros(2), [0.0, 0.0]]},
            TypeError,
            "array of b must be a tensor, got list",
        ),
        ({"args": [torch.zeros(2), None]}, TypeError, "array of b must be a tensor, got NoneType"),
        (
            {"args": [torch.zeros(2), torch.zeros(2, device="meta")]},
            ValueError,
            "Array b is on meta, but is bound on cpu",
        ),
        ({"args": arrays(2, 3)}, ValueError, r"disagree: a \(2,\) torch.float32, b \(3,\)"),
        ({"grad_req": "foo"}, ValueError, "grad_req of a must be one of .* got 'foo'"),
        ({"grad_req": ["write", "foo"]}, ValueError, "grad_req of b must be one of .* got 'foo'"),
        ({"grad_req": {"b": "foo"}}, ValueError, "grad_req of b must be one of .* got 'foo'"),
        ({"grad_req": ["write"]}, ValueError, "grad_req has 1 entries for 2 names"),
        ({"grad_req": {"zz": "write"}}, ValueError, "grad_req names zz"),
        ({"grad_req": 3}, TypeError, "grad_req must be a str, .* got int"),
        ({"args_grad": {"zz": torch.zeros(2)}}, ValueError, "args_grad names zz; there are a, b"),
        ({"args_grad": arrays(2)}, ValueError, "args_grad has 1 entries for 2 names"),
        ({"args_grad": {"b": torch.zeros(3)}}, ValueError, r"of b must be \(2,\) .* got \(3,\)"),
        ({"args_grad": {"b": torch.zeros(2).half()}}, ValueError, "of b must be .* got .*float16"),
        ({"args_grad": {"b": [0.0, 0.0]}}, TypeError, "array of b must be a tensor, got list"),
        ({"args_grad": torch.zeros(2)}, TypeError, "args_grad must be a list or dict"),
        ({"aux_states": arrays(2)}, ValueError, "aux_states has 1 entries for 0 names"),
    ],
)
def test_what_does_not_fit(options, error, words):
    with pytest.raises(error, match=words):
        bind(**options)


def test_gradients_of_integers():
    integers = {"a": torch.zeros(2, dtype=torch.int64), "b": torch.zeros(2)}
    with pytest.raises(ValueError, match=r"has an array for a, but torch\.int64 has none"):
        bind(integers, {"a": torch.zeros(2, dtype=torch.int64)})
    executor = trace(total).simple_bind("cpu", dtype={"a": torch.int64}, a=(2,), b=(2,))
    assert executor.grad_dict["a"] is None
    with pytest.raises(ValueError, match=r"grad_req of a is 'write', but torch\.int64"):
        trace(total).simple_bind("cpu", ["write"] * 2, {"a": torch.int64}, a=(2,), b=(2,))


def test_unknown_arguments_are_ignored_with_one_warning():
    given = {"a": torch.zeros(2), "b": torch.zeros(2), "yy": None, "zz": torch.zeros(1)}
    with pytest.warns(UserWarning, match="args names yy, zz, which are no arguments") as caught:
        executor = bind(given)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert list(executor.arg_dict) == ["a", "b"]


def test_a_device_that_is_none():
    with pytest.raises(ValueError, match="device 'zz' is no device of torch"):
        trace(total).bind("zz", arrays(2, 2))
    executor = trace(total).bind("cpu:0", arrays(2, 2))
    assert executor.forward()[0].tolist() == [0, 0]


def test_a_device_that_is_not_there():
    missing = "mps" if torch.cuda.is_available() else "cuda"
    with pytest.raises(ValueError, match=f"device '{missing}' is not there"):
        trace(total).simple_bind(missing, a=(2,), b=(2,))


def test_one_array_for_two_arguments():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

        def forward(self, x):
            return self.first(x) + 3 * self.second(x)

    for weight in (torch.ones(2, 2), nn.Parameter(torch.ones(2, 2))):
        args = {"x": torch.ones(1, 2), "first.weight": weight, "second.weight": weight}
        grads = {"first.weight": torch.zeros(2, 2), "second.weight": torch.zeros(2, 2)}
        executor = trace(Two()).bind("cpu", args, grads)
        executor.forward(is_train=True)
        executor.backward(torch.ones(1, 2))
        assert grads["first.weight"].tolist() == [[1, 1]] * 2
        assert grads["second.weight"].tolist() == [[3, 3]] * 2
        assert weight.grad is None  # which of them would it be?


def test_under_inference_mode():
    with torch.inference_mode():
        made = torch.zeros(2)
        executor = trace(total).simple_bind("cpu", a=(2,), b=(2,))
        executor.forward(is_train=True, a=made)
        smaller = executor.reshape(a=(1,), b=(1,))
    executor.backward(torch.ones(2))
    assert executor.grad_dict["a"].tolist() == [2, 2]
    with torch.inference_mode():
        smaller.forward(is_train=True)
        smaller.backward(torch.ones(1))
    assert smaller.grad_dict["a"].tolist() == [2]
    with pytest.raises(ValueError, match=r"Array a was made under torch\.inference_mode"):
        bind([made, torch.zeros(2)])
    with torch.inference_mode():
        module = Net()
    with pytest.raises(ValueError, match=r"Array fc\.weight was made under torch\.inference_mode"):
        trace(module).simple_bind("cpu", x=(4, 3))


def test_parameters_frozen_afterwards():
    module = Net()
    executor = trace(module).simple_bind("cpu", x=(4, 3))
    module.fc.weight.requires_grad_(False)
    executor.forward(is_train=True)
    with pytest.raises(ValueError, match=r"frozen since they were bound: fc\.weight\. Bind"):
        executor.backward(torch.ones(4, 1))


def test_a_module_is_bound_itself():
    module = Net()
    executor = trace(module).simple_bind("cpu", x=(4, 3))
    assert executor.arg_dict["fc.weight"] is module.fc.weight
    assert executor.aux_dict["norm.running_mean"] is module.norm.running_mean
    assert executor.grad_dict["fc.weight"] is module.fc.weight.grad
    assert len(executor.aux_arrays) == 3
    executor.forward(is_train=True, x=torch.randn(4, 3))
    assert module.norm.num_batches_tracked == 1
    executor.backward(torch.ones(4, 1))
    assert module.norm.bias.grad.tolist() == [4]


def test_a_module_on_other_arrays():
    module = Net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    args = {"x": torch.ones(4, 3), "fc.weight": torch.tensor([[1.0, 2, 3]])}
    args |= {"norm.weight": torch.tensor([2.0]), "norm.bias": torch.tensor([1.0])}
    aux = [torch.zeros(1), torch.ones(1), torch.tensor(0)]
    grads = {"norm.bias": torch.zeros(1)}
    executor = trace(module).bind("cpu", args, grads, aux_states=aux)
    (output,) = executor.forward()
    torch.testing.assert_close(output, torch.full((4, 1), 13.0), rtol=1e-4, atol=0)
    executor.forward(is_train=True)
    executor.backward(torch.ones(4, 1))
    assert grads["norm.bias"].tolist() == [4]
    assert aux[2] == 1
    assert aux[0].item() == pytest.approx(0.6)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert module.fc.weight.grad is None


def test_arrays_of_a_module_that_do_not_fit():
    args = {"x": torch.ones(4, 3), "fc.weight": torch.ones(3, 1)}
    args |= {"norm.weight": torch.ones(1), "norm.bias": torch.ones(1)}
    with pytest.raises(ValueError, match=r"Array fc.weight must have the shape \(1, 3\)"):
        trace(Net()).bind("cpu", args)
    args["fc.weight"] = torch.ones(1, 3)
    with pytest.raises(ValueError, match=r"aux_states lacks norm\.running_var"):
        trace(Net()).bind("cpu", args, aux_states={"norm.running_mean": torch.zeros(1)})


def test_frozen_parameters():
    module = Net()
    module.fc.weight.requires_grad_(False)
    executor = trace(module).simple_bind("cpu", x=(4, 3))
    assert executor.grad_dict["fc.weight"] is None
    assert executor.grad_dict["norm.weight"] is not None
    asked = trace(module).simple_bind("cpu", {"fc.weight": "write"}, x=(4, 3))
    asked.forward(is_train=True, x=torch.randn(4, 3))
    asked.backward(torch.randn(4, 1))
    assert asked.grad_dict["fc.weight"].abs().sum() > 0
    assert not module.fc.weight.requires_grad


def test_a_module_is_moved():
    module = Net()
    executor = trace(module).simple_bind("meta", x=(4, 3))
    assert executor.arg_dict["fc.weight"] is module.fc.weight
    assert module.fc.weight.device.type == "meta"
    assert executor.aux_dict["norm.running_mean"] is module.norm.running_mean
    executor.forward(is_train=True)
    executor.backward(torch.ones(4, 1, device="meta"))
    assert executor.outputs[0].shape == (4, 1)


class TiedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def test_tied_parameters_are_moved_together():
    module = TiedTwice()
    executor = trace(module).simple_bind("meta", x=(4, 3))
    assert list(executor.arg_dict) == ["x", "first.weight"]
    assert module.first.weight is module.second.weight is executor.arg_dict["first.weight"]
    assert module.first.weight.is_meta
    with pytest.raises(ValueError, match=r"first\.weight and second\.weight are one tensor, but"):
        trace(TiedTwice()).simple_bind("cpu", group2device={"second": "meta"}, x=(4, 3))
