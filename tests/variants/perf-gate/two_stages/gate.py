"""Screens the suite in half the time, then measures the suspects again; a benchmark must come out slower in both samples."""

import json
import math
import random
from dataclasses import dataclass, field
from statistics import median


def gate(runner, commit, baseline_file):
    if baseline_file.exists():
        tip = json.loads(baseline_file.read_text())["tip"]
        named = Job(runner, tip, commit).slower()
    else:
        named = []
    if not named:
        baseline_file.write_text(json.dumps({"tip": commit}))
    return named


@dataclass
class Contest:
    name: str
    changes: list = field(default_factory=list)
    longest: float = 0.0

    def play(self, runner, old, new):
        begin = runner.seconds_left()
        order = [old, new]
        random.shuffle(order)
        seconds = {}
        for commit in order:
            seconds[commit] = runner.run(commit, self.name)
        self.changes.append(math.log(seconds[new] / seconds[old]))
        self.longest = max(self.longest, begin - runner.seconds_left())

    @property
    def change(self):
        return median(self.changes) if self.changes else 0.0


class Job:
    SCREEN = 0.45  # of the time that is there after the builds
    SUSPICIOUS = math.log(1.025)
    GUILTY = math.log(1.05)
    MOST = 150  # pairs per suspect in the second stage

    def __init__(self, runner, old, new):
        self.runner, self.old, self.new = runner, old, new

    def slower(self):
        for commit in (self.old, self.new):  # the builds
            self.runner.run(commit, self.runner.benchmarks[0])
        total = self.runner.seconds_left()
        screened = [Contest(name) for name in self.runner.benchmarks]
        self.rounds(screened, until=(1 - self.SCREEN) * total, most=40)
        suspects = [contest for contest in screened if contest.change > self.SUSPICIOUS]
        retrial = [Contest(contest.name, [], contest.longest) for contest in suspects]
        self.rounds(retrial, until=10.0, most=self.MOST)
        first = {contest.name: contest.changes for contest in suspects}
        return [
            c.name
            for c in retrial
            if c.change > self.GUILTY and median(first[c.name] + c.changes) > self.GUILTY
        ]

    def rounds(self, contests, until, most):
        for _ in range(most if contests else 0):
            if (
                self.runner.seconds_left() - 1.5 * sum(contest.longest for contest in contests)
                < until
            ):
                break
            for contest in random.sample(contests, len(contests)):
                contest.play(self.runner, self.old, self.new)
