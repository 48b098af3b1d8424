"""Find damaged roofs in aerial photographs with a convolutional network in half precision."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class Squeeze(nn.Module):
    """Weigh the channels by what they hold on average."""

    def __init__(self, width):
        super().__init__()
        self.down = nn.Linear(width, width // 8)
        self.up = nn.Linear(width // 8, width)

    def forward(self, x):
        batch, channels, height, width = x.shape
        flat = x.contiguous().view(batch, channels, -1)
        weights = torch.sigmoid(self.up(F.relu(self.down(flat.mean(dim=2)))))
        return (flat * weights.unsqueeze(2)).view(batch, channels, height, width)


class Stage(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.reduce = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.refine = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.squeeze = Squeeze(outputs)

    def forward(self, x):
        x = F.relu(self.reduce(x))
        return self.squeeze(F.relu(self.norm(self.refine(x))))


class RoofNet(nn.Module):
    def __init__(self, widths=(48, 96, 192, 384)):
        super().__init__()
        pairs = zip((3, *widths), widths)
        self.stages = nn.Sequential(*(Stage(inputs, outputs) for inputs, outputs in pairs))
        self.head = nn.Linear(widths[-1], 5)

    def forward(self, images):
        return self.head(self.stages(images).mean(dim=(2, 3)))


@torch.inference_mode()
def main():
    device = torch.device("cuda")
    model = RoofNet().to(device).bfloat16().to(memory_format=torch.channels_last).eval()
    photographs = torch.randint(256, (64, 3, 512, 512), dtype=torch.uint8, device=device)
    damaged = torch.zeros(5, device=device)

    with profile(schedule=schedule(wait=1, warmup=2, active=8), with_stack=True) as prof:
        for number in range(1_000):
            images = photographs.to(torch.bfloat16, memory_format=torch.channels_last)
            images = images.sub_(120).div_(60)
            scores = model(images)
            damaged += scores.float().softmax(dim=1).sum(dim=0)
            if number % 100 == 99:
                print(damaged.tolist())
            prof.step()


if __name__ == "__main__":
    main()
