"""Tag names of ships in radio transcripts: a recurrent tagger, written out cell by cell."""

import torch
from torch import nn
from torch.profiler import profile, schedule

TAGS, VOCABULARY = 9, 12_000


class Tagger(nn.Module):
    def __init__(self, width=256, hidden=512):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(0.1)
        self.cell = nn.LSTMCell(width, hidden)
        self.classify = nn.Linear(hidden, TAGS)
        self.hidden = hidden

    def encode(self, embedded):
        batch, length, _ = embedded.shape
        h = embedded.new_zeros(batch, self.hidden)
        c = embedded.new_zeros(batch, self.hidden)
        outputs = []
        for t in range(length):
            h, c = self.cell(embedded[:, t], (h, c))
            outputs.append(h)
        return torch.stack(outputs, dim=1)

    def forward(self, tokens):
        embedded = self.dropout(self.embed(tokens))
        return self.classify(self.encode(embedded))


def batches(device, count, size=64, length=48):
    """The corpus fits on the device: it is shuffled there."""
    corpus = torch.randint(VOCABULARY, (4096, length), device=device)
    tags = torch.randint(TAGS, (4096, length), device=device)
    for _ in range(count):
        rows = torch.randint(4096, (size,), device=device)
        yield corpus.index_select(0, rows), tags.index_select(0, rows)


def main():
    device = torch.device("cuda")
    model = Tagger().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    history = []
    with profile(schedule=schedule(wait=2, warmup=1, active=3), with_stack=True) as prof:
        for step, (tokens, tags) in enumerate(batches(device, count=10_000)):
            scores = model(tokens)
            loss = criterion(scores.flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            history.append(loss.item())
            prof.step()


if __name__ == "__main__":
    main()
