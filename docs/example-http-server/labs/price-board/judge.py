"""Baskets, and what they cost."""

from bottleneck_lab.judging import get, parsed, post


def make_request(rng, data, settings):
    return post("/total", json={"items": rng.integers(1, 1000, size=3).tolist()})


def judge(request, reply, settings):
    total = sum(7 * item % 101 for item in parsed(request.body)["items"])
    return (
        None
        if parsed(reply) == {"total": total}
        else f"the total is {total}, and the reply was {reply[:80]!r}."
    )


def bad_requests(rng, settings):
    return [post("/total", b"no basket"), post("/total", json={"items": "all"}), get("/nowhere")]
