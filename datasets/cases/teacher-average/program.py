"""Semi-supervised training with a teacher that is the student's moving average."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile, schedule


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, size, padding=size // 2, bias=False) for size in (1, 3, 1)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))

    def forward(self, x):
        y = x
        for conv, norm in zip(self.convs, self.norms):
            y = F.relu(norm(conv(y)))
        return x + y


class Net(nn.Module):
    def __init__(self, width=128, depth=20, classes=100):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.body = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(self.body(self.stem(images)).mean(dim=(2, 3)))


@torch.no_grad()
def follow(teacher, student, decay=0.999):
    """Move the teacher a little towards the student."""
    ours = dict(student.named_parameters())
    for name, weight in teacher.named_parameters():
        weight.mul_(decay).add_(ours[name], alpha=1 - decay)
    for old, new in zip(teacher.buffers(), student.buffers()):
        old.copy_(new)


def main():
    device = torch.device("cuda")
    student = Net().to(device, memory_format=torch.channels_last)
    teacher = copy.deepcopy(student).eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.03, momentum=0.9)
    images = torch.randn(64, 3, 64, 64, device=device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(100, (16,), device=device)

    with profile(schedule=schedule(wait=2, warmup=1, active=3), with_stack=True) as prof:
        for _ in range(5_000):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                scores = student(images)
                with torch.no_grad():
                    wanted = teacher(images).softmax(dim=-1)
                loss = F.cross_entropy(scores[:16], labels)
                loss = loss + F.mse_loss(scores.softmax(dim=-1), wanted)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            follow(teacher, student)
            prof.step()


if __name__ == "__main__":
    main()
