"""DLPack both ways, pickles, copies and text, against NumPy, array-api-strict and, where it is installed, PyTorch."""

import copy
import gc
import io
import pickle
import threading

import array_api_strict as xp
import ml_dtypes
import numpy as np
import pytest

import bilin as bl

try:
    import torch
except ImportError:
    torch = None

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128"]


class Legacy:
    """Exports as before DLPack 1.0: no keywords, a capsule without a version."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


def layouts(dtype):
    a = np.arange(24).reshape(2, 3, 4).astype(dtype)
    return [a, a[::-1], a[:, ::-2], a.T, np.array(a[0, 0, 0]), a[:0], np.broadcast_to(a[0], (5, 3, 4)), np.asfortranarray(a)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_in_through_both_protocols(dtype):
    for a in layouts(dtype):
        for source in (a, Legacy(np.array(a)), xp.asarray(np.array(a)) if dtype not in ("float16",) else a):
            t = bl.from_dlpack(source)
            assert t.dtype.name == dtype and t.shape == a.shape
            np.testing.assert_array_equal(t.numpy(), a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_go_out_through_both_protocols(dtype):
    for a in layouts(dtype):
        t = bl.asarray(a)
        views = [t, t.T] + ([t[::-1]] if t.ndim else [])
        for view in views:
            shared = np.from_dlpack(view)
            np.testing.assert_array_equal(shared, view.numpy())
            assert not shared.flags.writeable
            legacy = np.from_dlpack(Legacy(view))
            np.testing.assert_array_equal(legacy, view.numpy())
            assert legacy.size == 0 or not np.shares_memory(legacy, shared)
    x = bl.ones((2, 2))
    assert np.shares_memory(np.from_dlpack(x), x.numpy()) and not np.shares_memory(np.from_dlpack(x, copy=True), x.numpy())
    assert x.__dlpack_device__() == (1, 0)


def halves():
    a = layouts("float32")
    return [bl.asarray(x).astype("bfloat16") for x in a] + [bl.asarray(a[0]).astype("bfloat16")[::-1, :, ::-2]]


class Other:
    """A tensor as another library's object: only the protocol."""

    def __init__(self, t, **fixed):
        self.t, self.fixed = t, fixed

    def __dlpack__(self, **options):
        return self.t.__dlpack__(**(options | self.fixed))

    def __dlpack_device__(self):
        return self.t.__dlpack_device__()


def test_bfloat16_goes_through_both_protocols():
    for t in halves():
        for source in (Other(t), Legacy(t), t.numpy()):
            got = bl.from_dlpack(source)
            assert got.dtype == bl.bfloat16 and got.shape == t.shape and got.tolist() == t.tolist()
    x = bl.asarray([1.5, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).astype("bfloat16")
    shared = bl.from_dlpack(Other(x), copy=False)
    with bl.no_grad():
        assert np.shares_memory(shared.numpy().view("u2"), x.numpy().view("u2"))
    copied = bl.from_dlpack(Other(x))
    assert not np.shares_memory(copied.numpy().view("u2"), x.numpy().view("u2"))
    # A capsule says bfloat16: NumPy, which has none, refuses it.
    with pytest.raises(Exception):
        np.from_dlpack(x)
    # Numbers of 16 bits that are none stay what they are.
    with pytest.raises(bl.DtypeMismatch, match="uint16"):
        bl.from_dlpack(np.zeros(3, "u2"))
    with pytest.raises(bl.InvalidArgument, match="__dlpack__: self"):
        bl.ones(2, dtype="bfloat16").requires_grad_().__dlpack__()


def test_what_is_shared_and_what_is_copied():
    a = np.zeros(64)
    a = a[-a.ctypes.data // 8 % 2 :][:32]
    copied, shared = bl.from_dlpack(a), bl.from_dlpack(a, copy=False)
    a[0] = 7
    assert copied[0].item() == 0 and shared[0].item() == 7
    read_only = np.ones(4)
    read_only.flags.writeable = False
    assert bl.from_dlpack(read_only).tolist() == [1] * 4


def test_what_is_refused():
    x = bl.ones((2, 2)).requires_grad_()
    with pytest.raises(bl.InvalidArgument, match="detach"):
        x.__dlpack__()
    with pytest.raises(bl.InvalidArgument, match="__dlpack__: stream"):
        bl.ones(2).__dlpack__(stream=1)
    with pytest.raises(BufferError, match="copy is False"):
        bl.ones(2).__dlpack__(copy=False)
    with pytest.raises(BufferError):
        bl.ones(2).__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    for bad in (np.array(["a"]), np.zeros(2, ">f8"), np.zeros(2, "M8[s]")):
        with pytest.raises(BufferError, match="from_dlpack: x"):
            bl.from_dlpack(bad)
    capsule = bl.ones(2).__dlpack__(max_version=(1, 0))
    with pytest.raises(TypeError, match="from_dlpack: x"):
        bl.from_dlpack(capsule)


def test_capsules_are_let_go_on_any_thread():
    gc.collect()
    before = bl.memory_stats()["current_bytes"]

    def elsewhere(items):
        thread = threading.Thread(target=lambda: (items.clear(), gc.collect()))
        thread.start()
        thread.join()

    for _ in range(20):
        t = bl.ones((100, 100))
        held = [t.__dlpack__(max_version=(1, 0)), t.__dlpack__(), np.from_dlpack(t), t.numpy(), t[::-1].numpy()]
        del t
        elsewhere(held)
        array = np.ones((100, 100))
        held = [bl.from_dlpack(array), bl.from_dlpack(Legacy(array)), bl.asarray(array[::-1])]
        del array
        elsewhere(held)
    gc.collect()
    assert bl.memory_stats()["current_bytes"] == before


if torch is not None:  # Not installed by ./test: docs/python.md says how it is run.

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_pytorch_both_ways(dtype):
        for a in layouts(dtype):
            t = bl.asarray(a)
            # The legacy protocol can't say that memory is read-only: PyTorch gets a copy.
            np.testing.assert_array_equal(torch.from_dlpack(t).numpy(), a)
            back = torch.from_numpy(np.array(a)).T if a.ndim == 2 else torch.from_numpy(np.array(a))
            np.testing.assert_array_equal(bl.from_dlpack(back).numpy(), back.numpy())

    def test_pytorch_both_ways_in_bfloat16():
        for t in halves():
            theirs = torch.from_dlpack(t)
            assert theirs.dtype == torch.bfloat16 and theirs.float().tolist() == t.astype("float32").tolist()
            assert torch.from_dlpack(t.__dlpack__()).float().tolist() == t.astype("float32").tolist()
            back = torch.tensor(t.astype("float32").numpy(copy=True)).bfloat16()
            for view in (back, back.T if back.ndim == 2 else back, back[..., ::2] if back.ndim else back):
                for source in (view, Legacy(view)):
                    ours = bl.from_dlpack(source)
                    assert ours.dtype == bl.bfloat16 and ours.tolist() == view.float().tolist()


def test_pickles_and_copies():
    tensors = [bl.asarray(a) for d in DTYPES for a in layouts(d)] + [bl.asarray([1.5, -2]).astype("bfloat16")]
    tensors += [bl.asarray([[1.0, 2.0]]).requires_grad_(), bl.zeros((0, 3)), bl.arange(6)[::-2]]
    for t in tensors:
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            same(pickle.loads(pickle.dumps(t, protocol)), t)
        same(copy.deepcopy(t), t)
        same(copy.copy(t), t)
    x = bl.ones((2, 2))
    with bl.no_grad():
        deep, shallow = copy.deepcopy(x), copy.copy(x)
        x += 1
    assert deep[0, 0].item() == 1 and shallow[0, 0].item() == 2
    file = io.BytesIO()
    pickle.dump({"x": x, "dtype": bl.bfloat16, "op": None}, file)
    file.seek(0)
    assert pickle.load(file)["dtype"] is not None
    for bad in ((b"abc", (2,), "float32", "cpu", False), (b"abcd", (1,), "floaty", "cpu", False), (b"abcd", (1,), "float32", "mars", False)):
        with pytest.raises((ValueError, TypeError)):
            bl._rebuild(*bad)


def same(a, b):
    assert (a.shape, a.dtype, a.requires_grad, a.device) == (b.shape, b.dtype, b.requires_grad, b.device)
    np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_numbers_and_lists():
    for d in DTYPES:
        a = np.array([[1, 0], [0, 1]], dtype=d)
        t = bl.asarray(a)
        assert t.tolist() == a.tolist() and type(t[0, 0].item()) is type(a[0, 0].item()) and t[0, 0].item() == a[0, 0].item()
    assert bl.asarray(ml_dtypes.bfloat16(1.5)).item() == 1.5 and bl.asarray(3).tolist() == 3
    with pytest.raises(bl.ShapeMismatch, match="item"):
        bl.ones(2).item()
    x = bl.ones((2, 2))
    assert np.asarray(x, dtype="float64").dtype == np.float64 and np.array(x).flags.writeable and not np.asarray(x).flags.writeable
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, dtype="float64", copy=False)
    b = np.array([1, 2.5], dtype=ml_dtypes.bfloat16)
    assert bl.asarray(b).numpy().tobytes() == b.tobytes() and bl.asarray(b).numpy().dtype == b.dtype


@pytest.mark.parametrize(
    "t, text",
    [
        (lambda: bl.asarray([[1.0, 2.5], [3.0, 4.0]]), "Tensor([[1. , 2.5],\n        [3. , 4. ]], dtype=float32)"),
        (lambda: bl.asarray(3), "Tensor(3, dtype=int64)"),
        (lambda: bl.zeros((0, 3)), "Tensor([], dtype=float32, shape=(0, 3))"),
        (lambda: bl.ones(2).requires_grad_(), "Tensor([1., 1.], dtype=float32, requires_grad=True)"),
        (lambda: bl.ones(2).requires_grad_() * 2, "Tensor([2., 2.], dtype=float32, grad_fn=MulBackward)"),
        (lambda: bl.ones(2, dtype="bfloat16"), "Tensor([1., 1.], dtype=bfloat16)"),
        (lambda: bl.ones(2, device="reference"), "Tensor([1., 1.], dtype=float32, device='reference')"),
    ],
)
def test_text_is_numpys(t, text):
    assert repr(t()) == text == str(t())
    big = bl.zeros((1000, 1000))
    assert "..." in repr(big) and len(repr(big)) < 1000
