"""Train a network on chess positions from self-play, and show how well it does."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, record_function, schedule


class Tower(nn.Module):
    def __init__(self, planes=112, width=256, depth=10):
        super().__init__()
        self.start = nn.Conv2d(planes, width, 3, padding=1)
        self.first = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.second = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.moves = nn.Linear(width * 64, 1858)
        self.result = nn.Linear(width * 64, 3)

    def forward(self, boards):
        x = F.relu(self.start(boards))
        for first, second in zip(self.first, self.second):
            x = F.relu(x + second(F.relu(first(x))))
        flat = x.flatten(1)
        return self.moves(flat), self.result(flat)


def accuracy(model, boards, moves):
    """The share of positions in which the network would play what was played."""
    scores, _ = model(boards)
    return (scores.argmax(dim=1) == moves).float().mean()


def main():
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    model = Tower().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    boards = torch.randn(1024, 112, 8, 8, device=device)
    moves = torch.randint(1858, (1024,), device=device)
    results = torch.randint(3, (1024,), device=device)
    hits = torch.zeros((), device=device)

    with profile(schedule=schedule(wait=1, warmup=1, active=5), with_stack=True) as prof:
        for step in range(20_000):
            with record_function("train"):
                policy, value = model(boards)
                loss = F.cross_entropy(policy, moves) + F.cross_entropy(value, results)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            with record_function("measure"):
                hits += accuracy(model, boards, moves).detach()
            if step % 500 == 499:
                print(f"{step + 1}: {hits.item() / (step + 1):.3f}")
            prof.step()


if __name__ == "__main__":
    main()
