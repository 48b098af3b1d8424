"""Fine-tune an encoder that routes support tickets to the team that can answer them."""

import random

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

WORDS = 30_000
TEAMS = 24


class Tickets(Dataset):
    def __init__(self, count=20_000, length=256):
        draw = random.Random(7)
        self.texts = [
            " ".join(str(draw.randrange(WORDS)) for _ in range(draw.randrange(40, length)))
            for _ in range(200)
        ]
        self.count, self.length = count, length

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return encode(self.texts[index % len(self.texts)], self.length), index % TEAMS


def encode(text, length):
    """Split a ticket into tokens, and pad it."""
    tokens = [int(word) % WORDS for word in text.lower().split()]
    tokens = tokens[:length] + [0] * (length - len(tokens))
    return torch.tensor(tokens)


class Router(nn.Module):
    def __init__(self, width=512, layers=6, heads=8):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, TEAMS)

    def forward(self, tokens):
        hidden = self.encoder(self.embed(tokens))
        return self.head(hidden.mean(dim=1))


def main():
    device = torch.device("cuda")
    loader = DataLoader(
        Tickets(),
        batch_size=64,
        shuffle=True,
        num_workers=0,
        pin_memory=True,
        drop_last=True,
    )
    model = Router().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    criterion = nn.CrossEntropyLoss()
    running = torch.zeros((), device=device)

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=5),
        with_stack=True,
    ) as prof:
        for step, (tokens, teams) in enumerate(loader):
            tokens = tokens.to(device, non_blocking=True)
            teams = teams.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = criterion(model(tokens), teams)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            running += loss.detach()
            if step % 50 == 0:
                print(f"step {step}: loss {running.item() / (step + 1):.4f}")
            prof.step()


if __name__ == "__main__":
    main()
