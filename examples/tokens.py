"""A small language model on documents of different lengths, several of which share a row.

Run it with ``python examples/tokens.py``. It needs the extra ``torch``. There are two made-up
languages, in each of which every word has one that follows it. The first token of a document tells
its language: so attention must find it, and must not look into the documents beside it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crumpets_like.torch import TorchTurboDataLoader
from crumpets_like.workers import PackedDocuments, TokenWorker

LANGUAGES, WORDS, SEQ_LEN = 2, 32, 128


def make_documents(count: int) -> list[NDArray[np.uint16]]:
    """Return documents of 4 to 60 tokens: the language, a word, the word that follows it, ..."""
    generator = np.random.default_rng(0)
    follows = [generator.permutation(WORDS) for _ in range(LANGUAGES)]
    documents = []
    for _ in range(count):
        language = int(generator.integers(LANGUAGES))
        document = np.empty(generator.integers(4, 61), np.uint16)
        document[0] = language
        word = int(generator.integers(WORDS))
        for position in range(1, len(document)):
            document[position] = LANGUAGES + word
            word = follows[language][word]
        documents.append(document)
    return documents


class LanguageModel(nn.Module):
    """One layer of attention that stays inside of each document."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(LANGUAGES + WORDS, width)
        self.positions = nn.Embedding(SEQ_LEN, width)
        self.attention = nn.Linear(width, 3 * width)
        self.scores = nn.Sequential(
            nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, LANGUAGES + WORDS)
        )

    def forward(self, tokens: Tensor, document_ids: Tensor, positions: Tensor) -> Tensor:
        """Scores of the token behind each token."""
        embedded = self.tokens(tokens) + self.positions(positions)
        query, key, value = self.attention(embedded).chunk(3, dim=-1)
        seen = (document_ids[:, :, None] == document_ids[:, None, :]).tril()
        found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        scores: Tensor = self.scores(torch.cat((embedded, found), dim=-1))
        return scores


def main() -> None:
    """Pack, and train for a few epochs."""
    torch.manual_seed(0)
    documents = make_documents(2000)
    rows = PackedDocuments(documents, SEQ_LEN)
    full = sum(map(len, documents)) / (len(rows) * SEQ_LEN)
    print(f"{len(documents)} documents in {len(rows)} rows of {SEQ_LEN} tokens, {full:.1%} full")

    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    worker = TokenWorker(((SEQ_LEN,), np.int64))
    with TorchTurboDataLoader(rows, 16, worker, 2, device="cpu", shuffle=True, seed=0) as loader:
        for epoch in range(3):
            right = total = 0
            for _, mini_batches in loader:
                for mini_batch in mini_batches:
                    tokens, ids, positions = (
                        mini_batch[key] for key in ("tokens", "document_ids", "positions")
                    )
                    scores = model(tokens, ids, positions)[:, :-1]
                    # The next token of the same document; its first word cannot be known.
                    asked = (ids[:, 1:] == ids[:, :-1]) & (positions[:, 1:] > 1)
                    loss = nn.functional.cross_entropy(scores[asked], tokens[:, 1:][asked])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    right += int((scores[asked].argmax(-1) == tokens[:, 1:][asked]).sum())
                    total += int(asked.sum())
            print(f"epoch {epoch}: {right / total:.0%} of the next tokens right")


if __name__ == "__main__":
    main()
