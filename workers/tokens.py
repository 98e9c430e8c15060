"""Sequences of integers of different lengths, in rows of one length.

General layout: `pack` decides which documents share a row, `PackedDocuments` is the dataset of such
rows, and `TokenWorker` writes a row, of one document or of several.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crumpets_like.arguments import check_count
from crumpets_like.broker import BufferWorker
from crumpets_like.workers.image import field

__all__ = ["PackedDocuments", "TokenWorker", "pack"]

_SIDES = ("start", "end")


class TokenWorker(BufferWorker):
    """Writes the documents of a sample one behind the other into a row, and pads the rest.

    A sample is one document, any one-dimensional sequence of integers; or a list or tuple of
    documents that share the row; or a mapping that has either as ``"tokens"``. `PackedDocuments`
    makes samples of the second kind. A mini-batch of B samples has

    - `tokens`: array of shape (B, seq_len);
    - `document_ids`: int32, (B, seq_len): 1 where the sample's first document is, 2 where its
      second is, and so on; 0 where there is padding. An empty document keeps its number;
    - `positions`: int32, (B, seq_len): counted from 0 in each document; 0 in the padding;
    - `truncated`: int64, (B,): how many of the sample's tokens were cut off.

    Attention that stays inside of documents is
    ``document_ids[:, :, None] == document_ids[:, None, :]``, for a causal model together with the
    lower triangle.

    Parameters
    ----------
    tokens : (shape, dtype) or (shape, dtype, fill_value)
        ``((seq_len,), dtype, padding)``: an integer dtype, and the token of the padding (0).
    truncate : {"end", "start"}, optional
        Which side of a row with more than `seq_len` tokens is cut off: ``"end"`` keeps its first
        `seq_len` tokens, ``"start"`` its last. `positions` begin at 0 with the first token that is
        kept of a document. Without it such a sample is an error.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used.

    Notes
    -----
    A sample with too many tokens, and no `truncate`, raises ValueError; what is no document raises
    TypeError; tokens that `dtype` cannot hold raise OverflowError.

    Examples
    --------
    >>> worker = TokenWorker(((1024,), np.int32, 50256), truncate="end")
    """

    def __init__(self, tokens: Any, *, truncate: str | None = None) -> None:
        super().__init__()
        self.add_buffer("tokens", tokens)
        spec = self.buffer_specs["tokens"]
        if len(spec.shape) != 1 or spec.shape[0] < 1:
            raise ValueError(f"tokens must have a shape (seq_len,), seq_len >= 1, not {spec.shape}")
        if spec.dtype.kind not in "iu":
            raise ValueError(f"tokens must have an integer dtype, not {spec.dtype}")
        if np.ndim(spec.fill_value):
            raise ValueError(
                f"tokens's fill_value is the one token of the padding, not {spec.fill_value!r}"
            )
        if truncate is not None and truncate not in _SIDES:
            raise ValueError(f"truncate must be one of {_SIDES} or None, not {truncate!r}")
        self.add_buffer("document_ids", (spec.shape, np.int32))
        self.add_buffer("positions", (spec.shape, np.int32))
        self.add_buffer("truncated", ((), np.int64))
        self.truncate = truncate
        self._padding = spec.fill_value
        self._counted = np.arange(spec.shape[0], dtype=np.int32)

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Fill one row."""
        documents = _documents(sample)
        tokens, ids, positions = (buffers[key] for key in ("tokens", "document_ids", "positions"))
        total, seq_len = sum(map(len, documents)), len(tokens)
        excess = max(0, total - seq_len)
        if excess and self.truncate is None:
            raise ValueError(
                f"the sample has {total:,} tokens in {len(documents):,} document(s), but a row has "
                f"{seq_len:,}: split it, put fewer documents into a row, or set truncate to one "
                f"of {_SIDES}"
            )
        # The documents are cut as if they were one: what is kept are seq_len tokens from `first`.
        first = excess if self.truncate == "start" else 0
        begin = stop = 0
        for number, document in enumerate(documents, 1):
            kept = document[max(0, first - begin) : max(0, first + seq_len - begin)]
            begin += len(document)
            start, stop = stop, stop + len(kept)
            tokens[start:stop] = kept
            ids[start:stop] = number
            positions[start:stop] = self._counted[: len(kept)]
        tokens[stop:] = self._padding
        ids[stop:] = 0
        positions[stop:] = 0
        buffers["truncated"][...] = excess


def _documents(sample: Any) -> list[NDArray[Any]]:
    if isinstance(sample, Mapping):
        sample = field(sample, "tokens")
    several = isinstance(sample, list | tuple) and hasattr(next(iter(sample), 0), "__len__")
    return [_document(part) for part in (sample if several else [sample])]


def _document(part: Any) -> NDArray[Any]:
    document = np.asarray(part)
    if document.ndim != 1 or (document.size and document.dtype.kind not in "iu"):
        raise TypeError(
            "a document must be a one-dimensional sequence of integers, not "
            f"{type(part).__name__} (as an array: {document.dtype} of shape {document.shape})"
        )
    return document if document.size else document.astype(np.int32)


class PackedDocuments(Sequence[list[Any]]):
    """A dataset of rows, each a list of documents that fit into it together.

    Parameters
    ----------
    documents : object
        A dataset by index (``len(documents)``, ``documents[index]``) of documents.
    seq_len : int
        Tokens in a row, as for `TokenWorker`.
    lengths : array_like of int, optional
        Number of tokens of each document. Without it every document is read once, for its ``len``.

    Attributes
    ----------
    indices, starts : numpy.ndarray
        Which documents each row has, see `pack`.

    Raises
    ------
    TypeError, ValueError
        If `seq_len` or `lengths` cannot be used.

    Notes
    -----
    The same documents share a row in every epoch. Which ones does not depend on any seed.

    Examples
    --------
    >>> documents = [np.arange(n) for n in (700, 300, 200, 500, 320)]
    >>> rows = PackedDocuments(documents, 1024)
    >>> [[len(document) for document in row] for row in rows]
    [[700, 320], [300, 200, 500]]
    """

    def __init__(self, documents: Any, seq_len: int, lengths: ArrayLike | None = None) -> None:
        count = len(documents)
        if lengths is None:
            lengths = [len(documents[index]) for index in range(count)]
        self.indices, self.starts = pack(lengths, seq_len)
        if len(self.indices) != count:
            raise ValueError(f"there are {count:,} documents, but {len(self.indices):,} lengths")
        self.documents = documents

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: Any) -> Any:
        """The documents of a row; rows do not come in slices."""
        number = range(len(self))[row]
        return [
            self.documents[index]
            for index in self.indices[self.starts[number] : self.starts[number + 1]].tolist()
        ]


def pack(lengths: ArrayLike, seq_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Decide which documents share a row.

    Best fit, the longest first: each document goes into the row where it leaves the least room, or
    begins a new one. That needs at most 11/9 of the rows of the best packing, and one
    (Johnson et al., 1974); with many documents much shorter than a row, nearly all rows are full.

    A document of `seq_len` tokens or more has a row of its own, and `TokenWorker` cuts it or
    refuses it. No document is split or left out.

    Parameters
    ----------
    lengths : array_like of int, shape (n,)
        Number of tokens of each document.
    seq_len : int
        Tokens in a row.

    Returns
    -------
    indices : numpy.ndarray
        int64, shape (n,): all documents, row by row, in each row in ascending order.
    starts : numpy.ndarray
        int64, shape (rows + 1,): row ``r`` has the documents ``indices[starts[r]:starts[r + 1]]``.
        Rows are in the order of their first documents.

    Raises
    ------
    TypeError, ValueError
        If `lengths` are no integers, or negative; if `seq_len` is not at least 1.
    """
    seq_len = check_count("seq_len", seq_len)
    given = np.asarray(lengths)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise TypeError(
            f"lengths must be integers, shape (n,), not {given.dtype} of shape {given.shape}"
        )
    if given.size and given.min() < 0:
        index = int(given.argmin())
        raise ValueError(f"lengths must not be negative, but lengths[{index}] is {given[index]}")
    most = seq_len if not given.size else min(seq_len, int(given.max()))  # in its dtype's range
    sizes = np.minimum(given, most).astype(np.int64)
    row_of = np.empty(len(sizes), np.int64)
    with_room: list[list[int]] = [[] for _ in range(seq_len + 1)]  # rows by how much is left
    # Bit k is set where with_room[k] has a row: the best fit is the lowest bit from `size`.
    some = 0
    rows = 0
    for index in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[index])
        fitting = some >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                some ^= 1 << room
        else:
            row, room = rows, seq_len
            rows += 1
        with_room[room - size].append(row)
        some |= 1 << (room - size)
        row_of[index] = row
    return _by_row(row_of, rows)


def _by_row(row_of: NDArray[np.int64], rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    first = np.full(rows, len(row_of))
    np.minimum.at(first, row_of, np.arange(len(row_of)))
    rank = np.empty(rows, np.int64)
    rank[np.argsort(first)] = np.arange(rows)
    renumbered = rank[row_of]
    indices = np.argsort(renumbered, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(renumbered, minlength=rows))))
    return indices, starts.astype(np.int64)
