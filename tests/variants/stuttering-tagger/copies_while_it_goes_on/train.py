"""Train the tagger; log loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import LOG_EVERY, Data, Tagger
from torch.nn import functional as F

IGNORED = -100


def copied(step, sums, seen, log):
    """Starts the copy; what is returned waits for it, an interval later, and reports."""
    there = torch.empty(sums.shape, pin_memory=True)
    there.copy_(sums, non_blocking=True)
    arrived = torch.get_device_module(sums.device).Event()
    arrived.record()

    def finish():
        arrived.synchronize()
        loss, correct, max_grad_norm = there.tolist()
        log(step, loss=loss / LOG_EVERY, accuracy=correct / seen, max_grad_norm=max_grad_norm)

    return finish


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model.

    Call `log(step, loss=…, accuracy=…, max_grad_norm=…)` after every LOG_EVERY steps, with plain
    numbers over those steps: the mean of the batches' losses, the share of tokens tagged
    correctly, and the largest norm of any parameter's gradient.
    """
    model = Tagger().to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    total_loss, correct, max_grad_norm = (torch.zeros((), device=device) for _ in range(3))
    seen, due = 0, []
    for step, (tokens, tags, lengths) in enumerate(data.batches(pin_memory=True), 1):
        longest = int(lengths.max())  # on the host, where the lengths are known: no reading back
        seen += int(lengths.sum())
        tokens = tokens.to(device, non_blocking=True)[:, :longest]
        tags = tags.to(device, non_blocking=True)[:, :longest]
        lengths = lengths.to(device, non_blocking=True)
        padding = torch.arange(longest, device=device) >= lengths[:, None]
        tags = tags.masked_fill(padding, IGNORED)  # every shape is known without looking at a value

        scores = model(tokens)
        loss = F.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in parameters]
        grad_norm = torch.stack(torch._foreach_norm(gradients)).max()
        max_grad_norm = torch.maximum(max_grad_norm, grad_norm)
        optimizer.step()

        total_loss += loss.detach()
        correct += (scores.detach().argmax(-1) == tags).sum()
        if step % LOG_EVERY == 0:
            if due:
                due.pop()()
            due.append(copied(step, torch.stack([total_loss, correct, max_grad_norm]), seen, log))
            total_loss, correct, max_grad_norm = (torch.zeros((), device=device) for _ in range(3))
            seen = 0
    due.pop()()
    return model


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
