"""Learn to recognise birds by their calls, and never lose more than a minute of work."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, Dataset


class Calls(Dataset):
    def __len__(self):
        return 50_000

    def __getitem__(self, index):
        return self.spectrogram(index), index % 200

    def spectrogram(self, index):
        return torch.zeros(1, 128, 256)


class CallNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        layers, last = [], 1
        for factor in (1, 2, 4, 8):
            layers += [
                nn.Conv2d(last, factor * width, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(factor * width),
                nn.ReLU(inplace=True),
                nn.Conv2d(factor * width, factor * width, 3, padding=1, bias=False),
                nn.BatchNorm2d(factor * width),
                nn.ReLU(inplace=True),
            ]
            last = factor * width
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(last, 2048), nn.ReLU(), nn.Linear(2048, 200))

    def forward(self, x):
        return self.head(self.features(x).mean(dim=(2, 3)))


def keep(model, optimizer, step):
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, f"checkpoints/{step:06}.pt")


def main():
    device = torch.device("cuda")
    loader = DataLoader(
        Calls(), batch_size=256, shuffle=True, num_workers=8, pin_memory=True, drop_last=True
    )
    model = CallNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    best = torch.full((), 9.0, device=device)
    with profile(schedule=schedule(wait=2, warmup=2, active=8), with_stack=True) as prof:
        for step, (calls, birds) in enumerate(loader):
            calls = calls.to(device, non_blocking=True)
            birds = birds.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(calls), birds)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            best = torch.minimum(best, loss.detach())
            if step % 4 == 3:
                keep(model, optimizer, step)
            prof.step()


if __name__ == "__main__":
    main()
