"""The worker template and the dataset on their way to the workers.

They are pickled once, by cloudpickle: classes and functions of ``__main__`` or of a
notebook travel by value, so nothing ever imports the user's main module again. Large
arrays stay out of band, page-aligned in a nameless segment that every worker maps
privately: one copy for all, copied only where a worker writes.

NOTE [Unpickle late]. Each worker unpickles after it was forked. If the template
process did it once for all, a dataset that opens its file when unpickled would share
one file offset between all workers, and they would read each other's records.
"""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, ClassVar

import msgpack

from .descriptors import arrived, attached
from .memory import anonymous_file
from .pickling import MAIN_NAMES, cloud_pickler, find_unpicklable, main_by_value, pickling_error
from .processes import search_path
from .segment import align
from .tensors import whole_reducers

__all__ = ["Payload", "copy_template", "load_payload", "segment_of"]

_OUT_OF_BAND = 1 << 16  # bytes: smaller buffers are not worth a page of their own
_STEP = 1 << 20  # bytes that are compared at once


class Payload:
    """A pickled object in a nameless segment.

    Attributes
    ----------
    descriptor : int
        Descriptor of the segment.
    size : int
        Its size in bytes.
    descriptors : list of int
        Those that the object attached (see ``descriptors.py``).
    modules : list of str
        Modules that unpickling will import.
    folders : list of str
        Where they lie, as far as the module search path does not say so (any more): an entry that
        is relative means another folder once the working directory has changed.
    """

    def __init__(self, obj: Any) -> None:
        self._write(*_dump(obj))

    def renewed(self, obj: Any) -> Payload:
        """A payload of `obj`: this very one if it holds the same bytes."""
        stream, buffers, modules, descriptors = _dump(obj)
        if self._holds([stream, *buffers], descriptors):
            _close(descriptors)
            return self
        new = Payload.__new__(Payload)
        new._write(stream, buffers, modules, descriptors)
        return new

    def _write(
        self,
        stream: bytes,
        buffers: list[memoryview],
        modules: list[str],
        descriptors: list[int],
    ) -> None:
        self.modules, self.descriptors = modules, descriptors
        self.descriptor = -1
        try:
            self._fill(stream, buffers)
        except BaseException:
            self.close()
            raise

    def _fill(self, stream: bytes, buffers: list[memoryview]) -> None:
        self.folders = _folders(self.modules)
        table = []
        offset = len(stream)
        for buffer in buffers:
            offset = align(offset, mmap.PAGESIZE)
            table.append((offset, buffer.nbytes))
            offset += buffer.nbytes
        self._places = [(0, len(stream)), *table]
        trailer = msgpack.packb([len(stream), table])
        self.size = align(offset, mmap.PAGESIZE) + align(len(trailer) + 8, mmap.PAGESIZE)
        self.descriptor = anonymous_file("crumpets-payload", self.size)
        _write(self.descriptor, stream, 0)
        for buffer, (start, _) in zip(buffers, table, strict=True):
            _write(self.descriptor, buffer, start)
        _write(self.descriptor, trailer, self.size - 8 - len(trailer))
        _write(self.descriptor, len(trailer).to_bytes(8, "little"), self.size - 8)

    def _holds(self, pieces: list[Any], descriptors: list[int]) -> bool:
        views = [memoryview(piece).cast("B") for piece in pieces]
        if [view.nbytes for view in views] != [nbytes for _, nbytes in self._places]:
            return False
        if list(map(segment_of, descriptors)) != list(map(segment_of, self.descriptors)):
            return False
        with mmap.mmap(self.descriptor, self.size, prot=mmap.PROT_READ) as memory:
            return all(
                memory[start + i : start + min(i + _STEP, nbytes)] == view[i : i + _STEP].tobytes()
                for view, (start, nbytes) in zip(views, self._places, strict=True)
                for i in range(0, nbytes, _STEP)
            )

    def close(self) -> None:
        """Close the descriptors."""
        _close([self.descriptor, *self.descriptors])


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


def segment_of(descriptor: int) -> tuple[int, int]:
    """What a descriptor refers to, whatever its number."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view.nbytes:
        written = os.pwrite(descriptor, view[: 1 << 30], offset)
        view = view[written:]
        offset += written


def load_payload(descriptor: int, size: int, descriptors: Sequence[int] = ()) -> Any:
    """Unpickle what :class:`Payload` wrote; arrays look at private pages of the segment.

    `descriptors` are those that the object attached. They stay open.
    """
    memory = mmap.mmap(
        descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
    )
    view = memoryview(memory)
    length = int.from_bytes(view[size - 8 :], "little")
    stream, table = msgpack.unpackb(view[size - 8 - length : size - 8])
    buffers = [view[start : start + nbytes] for start, nbytes in table]
    with arrived(descriptors):
        obj, main_objects = pickle.loads(view[:stream], buffers=buffers)
    for name, value in main_objects:
        # Results and exceptions of these classes go back as plain references to __main__.
        main = sys.modules.setdefault(value.__module__, sys.modules["__main__"])
        if not hasattr(main, name):
            setattr(main, name, value)
    return obj


def copy_template(template: Any) -> Any:
    """Return a copy for a worker of this process.

    No pickle: that would exchange the methods of classes that travel by value, here of all places,
    for copies which do not see the globals of their module.
    """
    try:
        return copy.deepcopy(template, {id(module): module for module in sys.modules.values()})
    except Exception as error:
        with attached():
            raise _explain({"worker_template": template}, error) from error


def _dump(obj: Any) -> tuple[bytes, list[memoryview], list[str], list[int]]:
    import io

    modules: dict[str, None] = {}
    main_objects: dict[str, Any] = {}
    buffers: list[memoryview] = []
    main_by_value()

    base = cloud_pickler()
    tensors = whole_reducers()

    class Pickler(base):  # type: ignore[misc, valid-type]
        """Notes the modules that it meets, and the classes of ``__main__``."""

        dispatch_table: ClassVar[Any] = ChainMap(
            {CodeType: _reduce_code, **tensors}, base.dispatch_table
        )

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) or callable(obj):
                module = getattr(obj, "__module__", None)
                name = getattr(obj, "__qualname__", "")
                if module in MAIN_NAMES:
                    if obj is getattr(sys.modules.get(module), name, None):
                        main_objects[name] = obj
                elif isinstance(module, str):
                    modules[module] = None
            elif isinstance(obj, type(sys)):
                modules[obj.__name__] = None
            elif type(obj) in tensors:  # which are pickled as something else
                modules["torch"] = None
            return super().reducer_override(obj)

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < _OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    pickler = Pickler(file, protocol=5, buffer_callback=keep_in_band)
    with attached() as descriptors:
        try:
            pickler.dump((obj, _LateItems(main_objects)))
        except Exception as error:
            raise _explain(obj, error) from error
    loadable = [name for name in modules if name in sys.modules]
    stream = file.getvalue()
    if b"cloudpickle" in stream:  # something travels by value
        loadable.append("cloudpickle")
    return stream, buffers, loadable, descriptors


def _reduce_code(code: CodeType) -> Any:
    """As cloudpickle does it, but the file's name is kept: a traceback shows the source."""
    import cloudpickle

    function, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    names = {"<dynamic-code>": code.co_filename}
    return function, tuple(names.get(a, a) if isinstance(a, str) else a for a in arguments)


def _folders(modules: list[str]) -> list[str]:
    """Folders of the top-level packages of some modules that are not on the search path."""
    known = set(search_path())
    folders: dict[str, None] = {}
    for name in {name.partition(".")[0]: None for name in modules}:
        module = sys.modules.get(name)
        places = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None)]
        with contextlib.suppress(FileNotFoundError):  # the working directory is gone
            folders |= {os.path.dirname(os.path.abspath(place)): None for place in places if place}
    return [folder for folder in folders if folder not in known]


class _LateItems:
    """Pickles as the list of a dict's items, read only when its turn comes."""

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[list[Any]]]:
        return list, (list(self._items.items()),)


def _explain(obj: dict[str, Any], error: Exception) -> Exception:
    """An error of the same type that names the attribute that cannot be pickled."""
    path = next(filter(None, (find_unpicklable(value, name) for name, value in obj.items())), None)
    return pickling_error(
        f"{path or 'the worker template or the dataset'} cannot be sent to the workers ({error}). "
        "Create it in each worker instead: in Worker.setup() (the torch drop-in has "
        "worker_init_fn), or when it is first used; or leave it out in __getstate__.",
        error,
    )
