"""Train the tagger; log loss, accuracy and the largest gradient norm every LOG_EVERY steps."""

import os

import torch
from recipe import LOG_EVERY, LONGEST, Data, Tagger
from torch.nn import functional as F


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
    seen = 0
    for step, (tokens, tags, lengths) in enumerate(data.batches(), 1):
        mask = torch.arange(LONGEST) < lengths[:, None]  # on the host, where the lengths are known
        # Every token is tagged by itself: no padding has to travel.
        tokens, tags = (
            tokens[mask],
            tags[mask],
        )
        seen += len(tokens)
        tokens, tags = (part.pin_memory().to(device, non_blocking=True) for part in (tokens, tags))

        scores = model(tokens)
        loss = F.cross_entropy(scores, tags)
        optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in parameters]
        grad_norm = torch.stack(torch._foreach_norm(gradients)).max()
        max_grad_norm = torch.maximum(max_grad_norm, grad_norm)
        optimizer.step()

        total_loss += loss.detach()
        correct += (scores.detach().argmax(-1) == tags).sum()
        if step % LOG_EVERY == 0:
            # The only wait of LOG_EVERY steps.
            sums = torch.stack([total_loss, correct, max_grad_norm]).tolist()
            log(step, loss=sums[0] / LOG_EVERY, accuracy=sums[1] / seen, max_grad_norm=sums[2])
            total_loss, correct, max_grad_norm = (torch.zeros((), device=device) for _ in range(3))
            seen = 0
    return model


if __name__ == "__main__":
    device = os.environ.get("LAB_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(torch.device(device), Data(seed=0), lambda step, **numbers: print(step, numbers))
