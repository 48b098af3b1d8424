"""The driver of servers with a judge of the lab's own: what is sent, what is made of the answers,
what an author is told.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab.judging import get, parsed, post
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.http_server import figures
from bottleneck_lab.measure.kinds.http_server.judging import Requests, check_answers
from bottleneck_lab.measure.kinds.http_server.load.level import Level
from bottleneck_lab.measure.kinds.http_server.load.messages import Messages
from bottleneck_lab.measure.kinds.http_server.load.steps import counts, show_steps, step

MS = 1_000_000


def judge(**changes):
    """A judge of doubled numbers, some of which are asked for without a body."""

    def make_request(rng, _data, settings):
        number = int(rng.integers(100))
        return get(f"/double/{number}") if number % 2 else post(settings["path"], json=number)

    def right(request, reply, _settings):
        number = int(request.body or request.path.rpartition("/")[2])
        return None if parsed(reply) == 2 * number else f"twice {number} is not {reply.decode()}."

    return SimpleNamespace(**{"make_request": make_request, "judge": right, **changes})


def requests_of(judge):
    settings = SimpleNamespace(judge={"path": "/double"})
    return Requests(SimpleNamespace(judge=lambda: judge, data=None, settings=settings))


def answered(requests, count=40):
    """A level in which every request was answered rightly, to be spoilt."""
    drawn, order = requests.draw(count, np.random.default_rng(1)), np.arange(count)
    numbers = [int(each.body or each.path.rpartition("/")[2]) for each in requests.made]
    replies = [b"%d" % (2 * number) for number in numbers]
    sent = order * MS
    return Level(drawn, sent, sent, sent + MS, np.full(count, 200), replies, 0.1)


def test_each_request_is_sent_as_the_judge_made_it(tmp_path):
    requests = requests_of(judge())
    numbers = requests.draw(30, np.random.default_rng(0))
    requests.messages(numbers).save(tmp_path / "messages.npz")
    sent = Messages.load(tmp_path / "messages.npz")
    for number, made in enumerate(requests.made):
        first, _, body = sent.whole(number).partition(b"\r\n\r\n")
        assert first.startswith(f"{made.method} {made.path} HTTP/1.1\r\n".encode())
        assert first.endswith(b"Content-Length: %d" % len(made.body))
        assert body == made.body
    assert len({made.path for made in requests.made}) > 5


def test_later_draws_are_other_requests():
    requests = requests_of(judge())
    first, second = (requests.draw(20, np.random.default_rng(seed)) for seed in (0, 1))
    assert not set(first) & set(second)
    again = requests.messages(second)
    assert again.whole(0).startswith(requests.made[20].method.encode())


def test_right_answers_are_right_and_each_wrong_one_is_found():
    requests = requests_of(judge())
    level = answered(requests)
    rng = np.random.default_rng(2)
    assert check_answers(level, requests, 1000, rng, np.arange(40)) is None
    level.replies[7] = b"-1"
    assert check_answers(level, requests, 1000, rng).startswith("Request 8 of 40: twice ")
    level.status[7] = 503
    assert check_answers(level, requests, 1000, rng) is None
    assert (
        check_answers(level, requests, 1000, rng, np.arange(40))
        == "1 of 40 good requests got status 503."
    )


def test_of_many_answers_some_are_judged_and_which_is_drawn():
    level_requests, judged = requests_of(judge()), []
    level = answered(level_requests)
    spying = requests_of(judge(judge=lambda request, _reply, _settings: judged.append(request)))
    spying.made = level_requests.made
    for seed in (3, 4):
        check_answers(level, spying, 5, np.random.default_rng(seed))
    assert len(judged) == 10
    assert judged[:5] != judged[5:]


def test_what_has_to_be_refused_is_sent_whole():
    assert requests_of(judge()).bad(np.random.default_rng(0)) == []
    bad = requests_of(judge(bad_requests=lambda _rng, _settings: [post("/double", b"{"), get("/")]))
    assert [each.split(b" HTTP")[0] for each in bad.bad(np.random.default_rng(0))] == [
        b"POST /double",
        b"GET /",
    ]


@pytest.mark.parametrize(
    ("changes", "call", "message"),
    [
        (
            {"make_request": lambda *_: b"GET /"},
            lambda requests, _: requests.draw(1, np.random.default_rng(0)),
            "`make_request` of judge.py returned b'GET /'",
        ),
        (
            {"bad_requests": lambda *_: ["x"]},
            lambda requests, _: requests.bad(np.random.default_rng(0)),
            "`bad_requests` of judge.py returned 'x'",
        ),
        (
            {"judge": lambda *_: True},
            lambda requests, level: check_answers(level, requests, 5, np.random.default_rng(0)),
            "`judge` of judge.py returned True",
        ),
    ],
    ids=["request", "bad request", "judge"],
)
def test_a_judge_of_another_form_is_told_to_its_author(changes, call, message):
    good, spoilt = requests_of(judge()), requests_of(judge(**changes))
    level = answered(good)
    spoilt.made = good.made
    with pytest.raises(VerifierFault) as raised:
        call(spoilt, level)
    assert message in str(raised.value)


def test_rates_come_from_answers_after_the_warm_up():
    begun = (np.arange(3000) * 2 * MS).astype(np.int64)
    level = Level(begun, begun, begun, begun + 10 * MS, np.full(3000, 200), [b""] * 3000, 0.1)
    rates = figures.rates(level)
    assert len(rates) >= 16
    assert rates == pytest.approx([500.0] * len(rates))
    half = np.where(np.arange(3000) % 2, 200, 503)
    assert figures.rates(Level(begun, begun, begun, begun + 10 * MS, half, [b""] * 3000, 0.1))[
        0
    ] == pytest.approx(250)


def test_steps_go_up_to_all_clients_and_are_drawn():
    assert counts(16) == [1, 2, 4, 8, 16]
    assert counts(12) == [1, 2, 4, 8, 12]
    begun = (np.arange(200) * 10 * MS).astype(np.int64)
    level = Level(begun, begun, begun, begun + 4 * MS, np.full(200, 200), [b""] * 200, 0.1)
    shown = show_steps([step(1, level, 2.0), step(2, level, 1.0)])
    assert "1         100     4.0     4.0  ████" in shown
