"""Find cracks in rails, and watch how the model does on stretches it is not trained on."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class Block(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))))


class CrackNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.start = Block(1, width)
        self.down = nn.ModuleList([Block(width, 2 * width), Block(2 * width, 4 * width)])
        self.head = nn.Conv2d(4 * width, 1, 1)

    def forward(self, x):
        x = self.start(x)
        for block in self.down:
            x = block(F.max_pool2d(x, 2))
        return self.head(x).amax(dim=(1, 2, 3))


def main():
    device = torch.device("cuda")
    model = CrackNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    rails = torch.randn(8, 24, 1, 320, 320, device=device)
    cracked = torch.randint(2, (8, 24), device=device).float()
    watched, truth = torch.randn(4, 1, 320, 320, device=device), torch.ones(4, device=device)
    drift = torch.zeros((), device=device)
    losses = []

    with profile(
        schedule=schedule(wait=0, warmup=1, active=10), profile_memory=True, with_stack=True
    ) as prof:
        for step in range(20_000):
            part = step % len(rails)
            loss = F.binary_cross_entropy_with_logits(model(rails[part]), cracked[part])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            watch = F.binary_cross_entropy_with_logits(model(watched), truth)
            drift = torch.lerp(drift, watch, 0.05)
            if step % 500 == 499:
                mean = torch.stack(losses).mean()
                print(f"{step}: {mean.item():.4f}, watched {drift.item():.4f}")
                losses.clear()
            prof.step()


if __name__ == "__main__":
    main()
