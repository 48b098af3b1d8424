"""Train the tagger; log loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import LOG_EVERY, Data, Tagger
from torch.nn import functional as F
from torch.utils.data import DataLoader


def report(under_way, log):
    """Log a report whose numbers were sent to the host at most LOG_EVERY steps ago."""
    if not under_way:
        return
    step, seen, numbers, arrived = under_way
    if arrived:
        arrived.synchronize()
    total_loss, correct, max_grad_norm = numbers.tolist()
    log(step, loss=total_loss / LOG_EVERY, accuracy=correct / seen, max_grad_norm=max_grad_norm)


def train(device, data, log):
    """Train on every batch of `data` in turn and return the model.

    Call `log(step, loss=…, accuracy=…, max_grad_norm=…)` after every LOG_EVERY steps, with plain
    numbers over those steps: the mean of the batches' losses, the share of tokens tagged
    correctly, and the largest norm of any parameter's gradient.
    """
    model = Tagger().to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9, foreach=True)
    # The model looks at each token by itself, so padding need not be copied at all.
    packed = []
    for tokens, tags, lengths in data.batches():
        there = torch.arange(tokens.shape[1]) < lengths[:, None]
        both = torch.stack([tokens[there], tags[there]])
        packed.append(both if device.type == "cpu" else both.pin_memory())
    sums, seen = torch.zeros(3, device=device), 0  # loss, correct, largest norm
    under_way = None  # the report before, until its numbers have arrived
    for step, both in enumerate(DataLoader(packed, batch_size=None), 1):
        seen += both.shape[1]
        tokens, tags = both.to(device, non_blocking=True)
        scores = model(tokens)
        loss = F.cross_entropy(scores, tags)
        optimizer.zero_grad()
        loss.backward()
        norms = torch.stack(torch._foreach_norm([each.grad for each in parameters]))
        optimizer.step()

        sums[0] += loss.detach()
        sums[1] += (scores.detach().argmax(-1) == tags).sum()
        sums[2] = torch.maximum(sums[2], norms.max())
        if step % LOG_EVERY == 0:
            report(under_way, log)
            numbers = torch.empty(3, pin_memory=device.type != "cpu")
            numbers.copy_(sums, non_blocking=True)
            arrived = None if device.type == "cpu" else torch.Event(device=device)
            if arrived:
                arrived.record()
            under_way = step, seen, numbers, arrived
            sums.zero_()
            seen = 0
    report(under_way, log)
    return model


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
