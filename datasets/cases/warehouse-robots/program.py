"""Teach robots to pick parcels: collect steps in simulated halls, then update the policy."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, record_function, schedule

HALLS, SENSES, MOVES = 256, 128, 12


class Halls:
    """256 halls with a robot in each."""

    def __init__(self):
        self.positions = torch.zeros(HALLS, SENSES)

    def step(self, moves):
        """Move every robot, and see what it sees then."""
        self.positions += 0.01 * moves.float().unsqueeze(1)
        rewards = torch.ones(HALLS)
        return self.positions, rewards


class Policy(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(SENSES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.moves, self.value = nn.Linear(width, MOVES), nn.Linear(width, 1)

    def forward(self, senses):
        x = self.body(senses)
        return self.moves(x), self.value(x).squeeze(-1)


def collect(policy, halls, senses, device, length):
    kept = []
    for _ in range(length):
        with torch.no_grad():
            scores, values = policy(senses)
            moves = torch.argmax(scores + torch.randn_like(scores), dim=-1)
        seen, rewards = halls.step(moves.cpu())
        kept.append((senses, moves, values, rewards.to(device)))
        senses = seen.to(device)
    return senses, [torch.cat(parts) for parts in zip(*kept)]


def update(policy, optimizer, senses, moves, values, rewards, epochs=4):
    for _ in range(epochs):
        scores, now = policy(senses)
        chosen = F.log_softmax(scores, dim=-1).gather(1, moves.unsqueeze(1)).squeeze(1)
        loss = -(chosen * (rewards - values)).mean() + F.mse_loss(now, rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def main():
    device = torch.device("cuda")
    policy, halls = Policy().to(device), Halls()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    senses = torch.zeros(HALLS, SENSES, device=device)
    with profile(schedule=schedule(wait=1, warmup=1, active=3), with_stack=True) as prof:
        for _ in range(1_000):
            with record_function("collect"):
                senses, batch = collect(policy, halls, senses, device, length=24)
            with record_function("update"):
                update(policy, optimizer, *batch)
            prof.step()


if __name__ == "__main__":
    main()
