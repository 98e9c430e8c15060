"""A list of Python objects in shared memory.

NOTE [Reference counts]. Whoever looks at a Python object writes to it: its reference count lies in
front of its value. In a forked process the kernel copies the page for that, so a list of a million
strings ends up once in every worker, though nobody changes it. Here the items are bytes of one
nameless segment that nobody writes to; an object exists only while somebody uses it.

Layout of the segment: the items one after the other, each a byte for its kind and then its data;
then, at a multiple of 8 bytes, where each of them begins and the last one ends, as int64.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, TypeVar, final, overload

from .broker.descriptors import attach, detach
from .broker.memory import anonymous_file, hide_from_dumps
from .broker.pickling import dump_by_value

__all__ = ["SharedList"]

T = TypeVar("T", covariant=True)

_WRITE_BYTES = 1 << 20  # at once, while a list is built
_TEXT, _BYTES, _PICKLE = b"t", b"b", b"p"
_IS_TEXT, _IS_BYTES = _TEXT[0], _BYTES[0]


@final
class SharedList(Sequence[T]):
    """A read-only list whose items lie in one segment of shared memory.

    All workers read the same bytes. They take no memory in a worker but for the items in use, and
    the segment is not copied when it is sent. Each access makes its object anew: ``x[0] is x[0]``
    does not hold, and changing an item changes nobody else's.

    A slice is a `SharedList`, too: a view of the same segment. The segment, and its descriptor,
    live as long as any view of it.

    It is equal to a list, a tuple or another `SharedList` of equal items.

    Parameters
    ----------
    items : iterable
        Anything that can be pickled; read once, and written to the segment one by one. Strings and
        bytes are stored as they are, which is smaller and quicker. Other items are pickled each by
        itself, so what two items share exists twice.

    Raises
    ------
    TypeError, PicklingError
        If an item cannot be pickled: the text tells its number.

    Notes
    -----
    It is pickled as a descriptor of its segment, never as its items. That works in the dataset or
    the worker template of a :class:`TurboDataLoader`, and while `multiprocessing` starts a process,
    also for torch's `DataLoader`. Elsewhere (files, queues, results of workers) it raises
    `PicklingError`: make it a `list` there. ``copy.copy`` and ``copy.deepcopy`` return the list
    itself.

    Examples
    --------
    >>> paths = SharedList(f"images/{number}.jpg" for number in range(1_000_000))
    >>> len(paths), paths[-1]
    (1000000, 'images/999999.jpg')
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._segment, length = _build(items)
        self._numbers = range(length)  # of this view's items in the segment

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> SharedList[T]: ...
    def __getitem__(self, index: int | slice) -> T | SharedList[T]:
        if isinstance(index, slice):
            return _view(self._segment, self._numbers[index])
        try:
            number = self._numbers[index]
        except IndexError:
            raise IndexError(
                f"Index {index} is out of range for a SharedList of {len(self):,} items."
            ) from None
        except TypeError:
            raise TypeError(
                f"A SharedList's index must be an integer or a slice, not {index!r} "
                f"({type(index).__name__})."
            ) from None
        return self._segment.read(number)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        return map(self._segment.read, self._numbers)

    def __reversed__(self) -> Iterator[T]:
        return map(self._segment.read, reversed(self._numbers))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SharedList | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(
            mine is theirs or mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # as that of a list: items need not have one

    def __copy__(self) -> SharedList[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedList[T]:
        return self

    def __reduce__(self) -> tuple[Callable[..., SharedList[T]], tuple[Any, ...]]:
        return _view, (self._segment, self._numbers)

    def __repr__(self) -> str:
        size = len(self._segment.memory) / 1e6
        return f"<SharedList of {len(self):,} items in a segment of {size:,.1f} MB>"


def _view(segment: _Segment, numbers: range) -> SharedList[Any]:
    """A list of some of a segment's items."""
    view: SharedList[Any] = SharedList.__new__(SharedList)
    view._segment, view._numbers = segment, numbers
    return view


class _Segment:
    """The memory of a list and of its views.

    Parameters
    ----------
    descriptor : int
        Of the segment; closed when this object ends.
    length : int
        Number of items.
    table : int
        Where the offsets begin, in bytes.
    named : tuple
        Classes and functions that the items' pickles name.
    """

    def __init__(self, descriptor: int, length: int, table: int, named: tuple[Any, ...]) -> None:
        weakref.finalize(self, os.close, descriptor).atexit = False
        size = table + 8 * (length + 1)
        self._descriptor = descriptor
        self._length = length
        self._table = table
        self._named = named
        self.memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        hide_from_dumps(self.memory)
        self._offsets = memoryview(self.memory)[table:].cast("q")

    def read(self, number: int) -> Any:
        """Make an item."""
        start = self._offsets[number]
        data = self.memory[start + 1 : self._offsets[number + 1]]
        kind = self.memory[start]
        if kind == _IS_TEXT:
            return data.decode()
        if kind == _IS_BYTES:
            return data
        return pickle.loads(data)

    def __reduce__(self) -> tuple[Callable[..., _Segment], tuple[Any, ...]]:
        # The names go along so that classes of __main__ travel as those of the dataset do.
        facts = (self._length, self._table, self._named)
        number = attach(self._descriptor)
        if number is not None:
            return _from_payload, (number, *facts)
        from multiprocessing import context, reduction

        if context.get_spawning_popen() is None:
            raise pickle.PicklingError(
                f"A SharedList ({self._length:,} items) is pickled as a descriptor of its memory, "
                "so only the payload of a TurboDataLoader and a process that multiprocessing is "
                "starting can take it. Elsewhere pickle its items: list(shared_list)."
            )
        return _from_parent, (reduction.DupFd(self._descriptor), *facts)


def _from_payload(number: int, *facts: Any) -> _Segment:
    return _Segment(detach(number), *facts)


def _from_parent(wrapper: Any, *facts: Any) -> _Segment:
    return _Segment(wrapper.detach(), *facts)


def _build(items: Iterable[Any]) -> tuple[_Segment, int]:
    """Write items to a new segment; returns it and their number."""
    descriptor = anonymous_file("crumpets-list", 0)
    try:
        offsets = array("q", [0])
        encoder = _Encoder()
        with open(descriptor, "wb", _WRITE_BYTES, closefd=False) as file:
            for item in items:
                kind, data = encoder.encode(item, len(offsets) - 1)
                file.write(kind)
                file.write(data)
                offsets.append(offsets[-1] + 1 + len(data))
            file.write(bytes(-offsets[-1] % 8))
            table = file.tell()
            file.write(offsets)
    except BaseException:
        os.close(descriptor)
        raise
    return _Segment(descriptor, len(offsets) - 1, table, encoder.named()), len(offsets) - 1


class _Encoder:
    """Makes bytes of items, and notes what their pickles refer to by name."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._pickler = _Pickler(self._file, protocol=5)

    def encode(self, item: Any, number: int) -> tuple[bytes, bytes]:
        """The kind and the data of an item."""
        if type(item) is str:
            try:
                return _TEXT, item.encode()
            except UnicodeEncodeError:  # lone surrogates, as in names of files
                pass
        elif type(item) is bytes:
            return _BYTES, item
        self._file.seek(0)
        self._file.truncate()
        self._pickler.clear_memo()
        known = len(self._pickler.named)
        try:
            self._pickler.dump(item)
        except Exception:  # noqa: BLE001  user code may raise anything; cloudpickle's error is shown
            while len(self._pickler.named) > known:  # they travel within the item
                self._pickler.named.popitem()
            return _PICKLE, _by_value(item, number)
        return _PICKLE, self._file.getvalue()

    def named(self) -> tuple[Any, ...]:
        """Classes and functions that have to be known where items are unpickled."""
        return tuple(self._pickler.named.values())


class _Pickler(pickle.Pickler):
    """Notes classes and functions by their identity: what is nested in a class, as that class."""

    named: dict[int, Any]

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.named = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType) and id(obj) not in self.named:
            module = sys.modules.get(obj.__module__)
            self.named[id(obj)] = getattr(module, obj.__qualname__.partition(".")[0], obj)
        return NotImplemented


def _by_value(item: Any, number: int) -> bytes:
    """Pickle what plain pickle cannot, such as local classes and functions."""
    try:
        return dump_by_value(item)
    except Exception as error:
        kind = type(error) if type(error) is TypeError else pickle.PicklingError
        raise kind(
            f"Item {number} of SharedList(items), a {type(item).__name__}, cannot be pickled "
            f"({error}). Store what can be, such as its path, and make the rest of it where the "
            "item is used."
        ) from error
