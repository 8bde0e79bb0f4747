"""The time left of a run, with a clock that the test sets."""

import pytest

from statetrim.pipelines.estimate import Step
from statetrim.pipelines.schedule import Schedule

STEPS = [Step("calibrate", "", 100), Step("prune", "", 20), Step("evaluate", "", 60)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def schedule(clock: Clock) -> Schedule:
    """In its first step."""
    schedule = Schedule(STEPS, clock)
    schedule.start_step("calibrate")
    return schedule


def test_before_anything_is_measured_the_estimate_counts(clock: Clock) -> None:
    schedule = Schedule(STEPS, clock)
    assert schedule.seconds_left() == 180
    assert schedule.start_step("calibrate") and schedule.seconds_left() == 180
    clock.now = 30
    assert schedule.seconds_left() == 150


def test_a_step_that_took_twice_its_estimate_doubles_what_is_left(
    clock: Clock, schedule: Schedule
) -> None:
    clock.now = 200
    schedule.start_step("prune")
    assert schedule.seconds_left() == 2 * (20 + 60)
    clock.now = 1000  # far beyond what it should have taken
    assert schedule.seconds_left() == 2 * 60
    assert schedule.fraction_done(120) == pytest.approx(1000 / 1120)


def test_a_bar_corrects_the_estimate_while_the_step_runs(clock: Clock, schedule: Schedule) -> None:
    clock.now = 5  # seconds to load models
    assert schedule.seconds_left(0.01) == pytest.approx(100 + 80, abs=6)
    clock.now = 15
    left = schedule.seconds_left(0.21)  # a fifth in 10 s: 50 s in all, half of the estimate
    assert left == pytest.approx(50 * 0.79 + 0.5 * 80)


def test_a_run_that_resumes_counts_from_where_it_began(clock: Clock, schedule: Schedule) -> None:
    schedule.seconds_left(0.5)
    clock.now = 10
    assert schedule.seconds_left(0.6) == pytest.approx(100 * 0.4 + 80)


def test_what_was_kept_teaches_nothing(clock: Clock, schedule: Schedule) -> None:
    schedule.mark_cached()
    clock.now = 0.1
    schedule.start_step("prune")
    assert schedule.seconds_left() == 80


def test_earlier_and_unknown_steps_are_part_of_the_running_one(clock: Clock) -> None:
    schedule = Schedule(STEPS, clock)
    schedule.start_step("prune")
    assert not schedule.start_step("calibrate") and not schedule.start_step("other")
    assert not schedule.start_step("prune") and schedule.step_names[schedule.position] == "prune"


def test_the_report_takes_the_same_however_slow_the_model_is(clock: Clock) -> None:
    schedule = Schedule([*STEPS, Step("report", "", 5)], clock)
    schedule.start_step("calibrate")
    clock.now = 3000  # thirty times the estimate
    schedule.start_step("prune")
    assert schedule.seconds_left() == 30 * (20 + 60) + 5
    schedule.start_step("report")
    assert schedule.seconds_left() == 5
